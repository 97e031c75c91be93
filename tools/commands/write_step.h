#pragma once

#include <functional>
#include <string>

#include "commands/commands.h"
#include "shardwise/checkpoint/reshard.h"

namespace shardwise::tools {

/// What the options of reshard and import mean.
struct StepWriting {
  Mesh mesh;
  SpecRules rules;
  shardwise::ReshardOptions options;
};

/// Writes one step of a root by `write`, together with the other processes that mpirun has started;
/// shows progress, and prints what was done. `command`: "reshard". `find_source` says what is read;
/// it is called when the options are known to be right. Returns the exit status.
int write_step(const std::string& command, const ReshardOptions& options,
               const std::function<std::filesystem::path()>& find_source,
               const std::function<SaveStats(const std::filesystem::path& source,
                                             const StepWriting& writing)>& write);

}  // namespace shardwise::tools
