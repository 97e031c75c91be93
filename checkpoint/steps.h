#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace shardwise {

/// One committed checkpoint of a root.
struct Step {
  std::int64_t step;
  std::int64_t generation;  ///< 1, or more if it was replaced
  std::filesystem::path directory;
  bool is_set_aside = false;    ///< by a run that went back: CheckpointManager
  bool valid() const = delete;  // verify_checkpoint(step.directory).ok()
};

/// A step directory that is not a valid checkpoint, and why. If it is another library's, or ours by
/// another name, the reason says what to type.
struct RejectedStep {
  std::filesystem::path directory;
  std::string reason;
  bool is_foreign = false;  ///< it is not damaged, and no save replaces it
};

/// The newest valid step, and the newer ones that had to be passed over.
struct LatestStep {
  Step step;
  std::vector<RejectedStep> rejected;
};

/// The steps with the smallest, or the largest, values of a metric (SaveOptions::metrics).
struct BestSteps {
  std::string metric;
  enum class Order { min, max } order = Order::min;
  std::int64_t count = 1;
};

/// What save_async does if the save before is still under way.
enum class WhenBusy {
  wait,     ///< it waits for that one
  skip,     ///< it saves nothing: SaveStats::skipped
  replace,  ///< it is saved after that one, unless the next one takes its place
            ///< (SaveStats::skipped); this takes the memory of two copies
};

/// A step that has a name, by which it stays until the name is taken away.
struct NamedStep {
  std::string name;
  std::int64_t step;
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

namespace detail {
/// What other libraries call some options; the compiler shows what they are here.
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
}  // namespace detail

struct GarbageOptions {
  /// Names of machines or containers that are gone for good. This machine cannot know whether a
  /// process of another machine is alive, so that process's lease holds until its host (in the
  /// lease's JSON) is named here. Live processes that this one can see keep their leases in any
  /// case.
  std::vector<std::string> dead_hosts = {};
};

/// What start-up or gc removed.
struct GarbageReport {
  /// Names in the root: attempts, trash, leases, and generations that a valid one replaces.
  std::vector<std::string> removed;
  std::vector<std::string> kept;  ///< in use by a process that may be alive
};

}  // namespace shardwise
