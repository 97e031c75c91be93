#pragma once

#include "shardwise/runtime/process/process_group.h"

namespace shardwise::tools {

/// The processes that mpirun has started this command as; one process if mpirun has not. Throws
/// unsupported if they cannot be reached: built without MPI, or with another one than mpirun's.
ProcessGroup launched_group();

}  // namespace shardwise::tools
