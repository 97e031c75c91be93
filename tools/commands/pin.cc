#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "commands/commands.h"
#include "output.h"
#include "parse.h"
#include "shardwise/checkpoint/manager.h"
#include "steps/checkpoint_path.h"

namespace shardwise::tools {

int run_pin(const PinOptions& options) {
  CheckpointManager manager(options.root, {.collect_garbage = false});
  manager.pin(options.step, options.name);
  if (options.json) {
    print_json({{"root", options.root}, {"step", options.step}, {"name", options.name}});
  } else {
    print_shown(fmt::format("step {} is pinned as {}\n", options.step, options.name));
  }
  return 0;
}

int run_unpin(const UnpinOptions& options) {
  CheckpointManager manager(root_of_steps("unpin", options.root), {.collect_garbage = false});
  for (const std::string& name : options.names) {
    manager.unpin(name);
    if (!options.json) print_shown(fmt::format("{} pins no step any more\n", name));
  }
  if (options.json) print_json({{"root", options.root}, {"unpinned", options.names}});
  return 0;
}

}  // namespace shardwise::tools
