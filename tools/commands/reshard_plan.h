#pragma once

#include "commands/write_step.h"

namespace shardwise::tools {

struct CheckedReshardOptions : ReshardOptions {
  std::string step;
  std::vector<std::string> words;  ///< after the source
  bool dry_run = false, verify = false;
};

/// Prints the plan of a reshard; nothing is written. Returns the exit status.
int show_reshard_plan(const CheckedReshardOptions& options);

}  // namespace shardwise::tools
