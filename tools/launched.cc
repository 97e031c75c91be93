#include "launched.h"

#include <fmt/format.h>

#include <cstdlib>
#include <string>

#include "shardwise/shard/error.h"
#if defined(SHARDWISE_MPI)
#include "shardwise/runtime/process/mpi_transport.h"
#endif

namespace shardwise::tools {
namespace {

/// As the launchers of OpenMPI and MPICH tell the processes that they start.
int launched_processes() {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    if (const char* const text = std::getenv(name)) return std::atoi(text);
  }
  return 1;
}

}  // namespace

ProcessGroup launched_group() {
  const int processes = launched_processes();
  if (processes <= 1) return {};
#if defined(SHARDWISE_MPI)
  ProcessGroup group(mpi_transport());
  if (group.size() == processes) return group;
  const std::string why = "with another MPI than mpirun's: " SHARDWISE_MPI;
#else
  const std::string why = "without MPI";
#endif
  throw Error(ErrorCode::unsupported,
              fmt::format("started as one of {} processes, but built {}", processes, why));
}

}  // namespace shardwise::tools
