#pragma once

#include <string>
#include <vector>

namespace shardwise {

struct GarbageOptions {
  /// Names of machines or containers that are gone for good. Whether another machine's process is
  /// alive nobody here can know, so its lease holds for ever unless its host (in the lease's JSON)
  /// is named here. Live processes that this one can see keep theirs all the same.
  std::vector<std::string> dead_hosts = {};
};

/// What start-up or gc removed.
struct GarbageReport {
  /// Names in the root: attempts, trash, leases, and generations that a valid one replaces.
  std::vector<std::string> removed;
  std::vector<std::string> kept;  ///< in use by a process that may be alive
};

}  // namespace shardwise
