#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "commands/commands.h"
#include "output.h"
#include "parse.h"
#include "shardwise/jobs/manager.h"
#include "steps/checkpoint_path.h"
#include "steps/chosen_steps.h"

namespace shardwise::tools {
namespace {

struct PinOptions {
  std::string root, name;
  std::vector<std::string> words;
  std::int64_t step = 0;
  bool json = false;
};

int run_pin(PinOptions& options) {
  if (options.words.size() == 1 && names_step(chosen_path(options.root), options.words[0])) {
    throw BadUsage(fmt::format("pin: name is required, as in `shardwise pin {} {} best`",
                               options.root, options.words[0]));
  }
  const std::vector<std::string> steps(options.words.begin(), options.words.end() - 1);
  const std::vector<std::string> paths = paths_of_steps("pin", options.root, steps);
  if (paths.size() > 1) refuse_word("pin", steps[0]);
  options.step = number_of_step("pin", paths[0]);
  options.root = root_above(paths[0]).string();
  options.name = options.words.back();
  CheckpointManager manager(options.root, {.collect_garbage = false});
  manager.pins().add(options.step, options.name);
  if (options.json) {
    print_json({{"root", options.root}, {"step", options.step}, {"name", options.name}});
  } else {
    print_shown(fmt::format("step {} is pinned as {}\n", options.step, options.name));
  }
  return 0;
}

struct UnpinOptions {
  std::string root;
  std::vector<std::string> names;
  bool json = false;
};

int run_unpin(UnpinOptions& options) {
  CheckpointManager manager(root_of_steps("unpin", options.root), {.collect_garbage = false});
  for (const std::string& name : options.names) {
    manager.pins().remove(name);
    if (!options.json) print_shown(fmt::format("{} pins no step any more\n", name));
  }
  if (options.json) print_json({{"root", options.root}, {"unpinned", options.names}});
  return 0;
}

}  // namespace

void declare_pin(CLI::App& app, Run& run) {
  const auto [pin, options] =
      add_command(app, run, "pin", "Give a step a name that keeps it: retention and rm leave it",
                  "shardwise pin runs/checkpoints 100 before-lr-drop", run_pin);
  add_path(pin, "root", options.root, "Directory that holds the step, or run@100 with it");
  pin.add_option("name", options.words,
                 "The step's number, and the name: letters, digits, '.', '-', '_'; a name that "
                 "another step has moves")
      ->required();
}

void declare_unpin(CLI::App& app, Run& run) {
  const auto [unpin, options] =
      add_command(app, run, "unpin", "Take names of steps away",
                  "shardwise unpin runs/checkpoints before-lr-drop", run_unpin);
  add_path(unpin, "root", options.root, "Directory that holds the steps");
  unpin.add_option("name", options.names, "The names (ls shows them)")->required();
}

}  // namespace shardwise::tools
