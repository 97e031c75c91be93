#pragma once

#include <memory>
#include <optional>

#include "shardwise/checkpoint/save.h"
#include "shardwise/shard/error.h"

namespace shardwise {

namespace jobs_detail {
struct ManagerInternals;
class SaveQueue;
}  // namespace jobs_detail

/// A save under way; made by itself, one that is done and saved nothing. Thread-safe; copies refer
/// to the same save.
class PendingSave {
 public:
  bool done() const;

  /// Returns when it is committed. Throws the error of the save: then the step is not listed and
  /// older checkpoints are as they were.
  SaveStats wait() const;

 private:
  friend class CheckpointManager;
  friend struct jobs_detail::ManagerInternals;
  friend class jobs_detail::SaveQueue;
  struct State;
  std::optional<SaveStats> settle() const;

  std::shared_ptr<State> state_;
};

}  // namespace shardwise
