#pragma once

#include <filesystem>
#include <memory>
#include <utility>

#include "shardwise/checkpoint/attempt.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/record/attempt_place.h"
#include "shardwise/checkpoint/reader.h"

namespace shardwise::detail {

/// Doors of readers and attempts that other rooms use, and programs do not.
struct Internals {
  /// A reader that opens shard files only when something of them is read, however few there are,
  /// and does not notice before that one is not there.
  static CheckpointReader reader_as_needed(const std::filesystem::path& directory,
                                           const ReadOptions& options) {
    return CheckpointReader(directory, options, true);
  }

  /// A reader of a checkpoint that was opened by other means.
  static CheckpointReader reader_of(StoredCheckpoint checkpoint) {
    return CheckpointReader(std::move(checkpoint));
  }

  /// An attempt whose files go elsewhere than next to a folder.
  static std::unique_ptr<CheckpointAttempt> attempt_at(std::unique_ptr<AttemptPlace> place) {
    return std::unique_ptr<CheckpointAttempt>(new CheckpointAttempt(std::move(place)));
  }
};

}  // namespace shardwise::detail
