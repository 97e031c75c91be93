#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

namespace shardwise {

/// The steps with the smallest, or the largest, values of a metric (SaveOptions::metrics).
struct BestSteps {
  std::string metric;
  enum class Order { min, max } order = Order::min;
  std::int64_t count = 1;
};

/// How save_async goes on if the save before is still under way.
enum class WhenBusy {
  wait,     ///< it waits for that one
  skip,     ///< it saves nothing: SaveStats::skipped
  replace,  ///< it is saved after that one, unless the next one takes its place
            ///< (SaveStats::skipped); this takes the memory of two copies
};

/// How a job goes on if the storage fails a save: no room, a broken device, a file that is gone or
/// damaged, on any process.
enum class OnSaveError {
  raise,  ///< its error is thrown
  warn,   ///< the job goes on: the save tells why it failed, and does not throw
};

/// How a manager's saves have ended, with OnSaveError::warn: the same on all processes.
struct ManagerStats {
  std::int64_t failed_saves = 0;     ///< of all
  std::int64_t failed_in_a_row = 0;  ///< since the last one that was committed

  /// The step of the last save that failed, and the reason, with the rank.
  std::optional<std::int64_t> failed_step = {};
  std::string error = {};
};

/// For a job whose processes each have a root of their own, on a node-local disk or in /dev/shm.
struct LocalRoots {
  /// How many other processes get a copy of each shard file. Those of rank r are the ranks
  /// r + processes_per_host, r + 2 processes_per_host, ... modulo the number of processes.
  int copies = 0;

  /// How many neighbouring ranks are lost together. It divides the number of processes, and there
  /// are more hosts than copies.
  int processes_per_host = 1;
};

namespace jobs_detail {
/// Options by the names of other libraries; the compiler shows their names here.
struct MaxToKeep {
  MaxToKeep() = default;
  MaxToKeep(std::int64_t) = delete;  // keep_last
};
struct SaveIntervalSteps {
  SaveIntervalSteps() = default;
  SaveIntervalSteps(std::int64_t) = delete;  // save_every
};
struct MapAsJson {
  std::map<std::string, double> user_json;
};
}  // namespace jobs_detail

}  // namespace shardwise
