#pragma once

#include <filesystem>
#include <utility>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/reader.h"

namespace shardwise::detail {

/// Doors of readers that other rooms use, and programs do not.
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
};

}  // namespace shardwise::detail
