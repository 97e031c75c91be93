#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace shardwise {

/// One committed checkpoint of a root.
struct Step {
  std::int64_t step;
  std::int64_t generation;  ///< 1, or more if it was replaced
  std::filesystem::path directory;
  bool is_set_aside = false;    ///< by a run that went back: CheckpointManager
  bool is_damaged = false;      ///< the manager has found it so, and replaces it
  bool valid() const = delete;  // verify_checkpoint(step.directory).ok()
};

/// A step directory that is no valid checkpoint. The reason says what to type if it is another
/// library's, or ours by another name.
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

/// A step that is kept as long as it has a name.
struct NamedStep {
  std::string name;
  std::int64_t step;
};

struct GarbageOptions {
  /// Machines or containers that are gone for good. This machine cannot know whether a process of
  /// another one is alive, so its lease holds until its host (in the lease's JSON) is named here.
  /// Live processes that this one can see keep their leases in any case.
  std::vector<std::string> dead_hosts = {};
};

/// The result of the clean-up at start-up or of gc.
struct GarbageReport {
  /// Names in the root: attempts, trash, leases, and generations that a valid one replaces.
  std::vector<std::string> removed;
  std::vector<std::string> kept;  ///< in use by a process that may be alive
};

}  // namespace shardwise
