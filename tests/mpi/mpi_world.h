#pragma once

#include "shardwise/runtime/process/mpi_transport.h"
#include "shardwise/runtime/process/process_group.h"

namespace shardwise {

/// All ranks. One group for all tests, as MPI must be initialised once; tests take operations of it
/// in the same order on every rank.
inline const ProcessGroup& mpi_world() {
  static const ProcessGroup group(mpi_transport());
  return group;
}

}  // namespace shardwise
