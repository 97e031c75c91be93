#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "commands/commands.h"
#include "output.h"
#include "parse.h"
#include "shardwise/bucket/bucket.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"
#include "steps/checkpoint_path.h"
#include "steps/chosen_steps.h"

namespace shardwise::tools {
namespace {

struct RmOptions {
  std::string root;
  std::vector<std::string> words;
  std::vector<std::int64_t> steps;
  bool force = false;
  bool json = false;
};

bool is_valid(const Step& step) {
  try {
    static_cast<void>(CheckpointReader(step.directory, {.pin = false}));
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::io) throw;  // it cannot be read now, and may be the last one
    return false;
  }
}

/// The newest valid one of the steps that are to go, if no valid one stays without them. A step
/// that is set aside stands in for none of the run.
std::optional<std::int64_t> last_valid(const CheckpointManager& manager,
                                       const std::vector<std::int64_t>& doomed) {
  const std::vector<Step> steps = manager.steps();
  const auto newest = [&](bool of_doomed, bool is_set_aside) -> std::optional<std::int64_t> {
    for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
      if (step->is_set_aside != is_set_aside) continue;
      const bool is_doomed = std::ranges::binary_search(doomed, step->step);
      if (is_doomed == of_doomed && is_valid(*step)) return step->step;
    }
    return std::nullopt;
  };
  for (const bool is_set_aside : {false, true}) {
    if (newest(false, is_set_aside)) return std::nullopt;
    if (const auto last = newest(true, is_set_aside)) return last;
  }
  return std::nullopt;
}

/// No process in a bucket says that it reads a step, and --force is to remove the last one.
int remove_from_bucket(const RmOptions& options) {
  const CheckpointManager manager(options.root, {.collect_garbage = false});
  const auto is_doomed = [&](const Step& step) {
    return std::ranges::find(options.steps, step.step) != options.steps.end();
  };
  const std::vector<Step> steps = manager.steps();
  if (!options.force && std::ranges::all_of(steps, is_doomed)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("rm: found no step of {} that would stay, needed one; --force removes "
                            "all",
                            options.root));
  }
  auto removed = nlohmann::ordered_json::array();
  for (const std::int64_t step : options.steps) {
    if (!remove_step(options.root, step)) continue;
    removed.push_back(step);
    if (!options.json) print_shown(fmt::format("removed step {}\n", step));
  }
  if (options.json) {
    print_json({{"root", options.root}, {"removed", removed}, {"left", nlohmann::json::array()}});
  }
  return 0;
}

/// Status 1 if steps were left.
int run_rm(RmOptions& options) {
  std::set<std::string> roots;
  for (const std::string& path : paths_of_steps("rm", options.root, options.words)) {
    options.steps.push_back(number_of_step("rm", path));
    roots.insert(root_above(path).string());
  }
  if (roots.size() > 1) {
    throw BadUsage(fmt::format("rm: found steps of {} and {}, needed those of one directory",
                               *roots.begin(), *roots.rbegin()));
  }
  options.root = *roots.begin();
  if (in_bucket(options.root)) return remove_from_bucket(options);
  CheckpointManager manager(options.root, {.collect_garbage = false});
  std::vector<std::int64_t> steps = options.steps;
  std::ranges::sort(steps);
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  for (const std::int64_t step : steps) static_cast<void>(manager.step(step));  // throws

  const std::optional<std::int64_t> last =
      options.force ? std::nullopt : last_valid(manager, steps);
  const std::vector<NamedStep> pinned = manager.pins().list();
  auto removed = nlohmann::ordered_json::array(), left = nlohmann::ordered_json::array();
  for (const std::int64_t step : steps) {
    std::string reason;
    const auto name = std::ranges::find(pinned, step, &NamedStep::step);
    if (name != pinned.end()) {
      reason = fmt::format("it is pinned as {}", name->name);
    } else if (options.force) {
      manager.remove(step);
    } else if (step == last) {
      const bool leaves_some = std::ranges::any_of(manager.steps(), &Step::is_set_aside);
      reason = fmt::format("no other step of the directory is valid{}",
                           leaves_some ? " and not set aside" : "");
    } else if (!manager.remove(step, WhenRead::keep)) {
      reason = "somebody reads it";
    }
    if (reason.empty()) {
      removed.push_back(step);
    } else {
      left.push_back({{"step", step}, {"reason", reason}});
    }
    if (options.json) continue;
    print_shown(reason.empty() ? fmt::format("removed step {}\n", step)
                               : fmt::format("left step {}: {}; {}\n", step, reason,
                                             name == pinned.end() ? "--force removes it"
                                                                  : "unpin takes the name away"));
  }
  if (options.json) print_json({{"root", options.root}, {"removed", removed}, {"left", left}});
  return left.empty() ? 0 : 1;
}

}  // namespace

void declare_rm(CLI::App& app, Run& run) {
  const auto [rm, options] =
      add_command(app, run, "rm", "Remove steps; exit status 1: some were left",
                  "shardwise rm runs/checkpoints 100 200\n"
                  "  shardwise rm runs/checkpoints/step-00000100",
                  run_rm);
  add_place(rm, "root", options.root, "Directory that holds the steps, or one of them");
  rm.add_option("step", options.words, "Their numbers, or their directories")->check(local_path());
  rm.add_flag(
      "--force", options.force,
      "Also those that somebody reads, and the last valid one (both are left otherwise); not "
      "those that are pinned");
}

}  // namespace shardwise::tools
