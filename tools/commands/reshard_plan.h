#pragma once

#include "commands/commands.h"

namespace shardwise::tools {

/// Prints what a reshard would do; nothing is written. Returns the exit status.
int show_reshard_plan(const CheckedReshardOptions& options);

}  // namespace shardwise::tools
