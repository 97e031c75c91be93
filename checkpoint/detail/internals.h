#pragma once

#include <filesystem>
#include <utility>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/together/terms.h"
#include "shardwise/checkpoint/manager.h"
#include "shardwise/checkpoint/reader.h"

namespace shardwise::detail {

/// What reshards and tiers use of managers and readers, and programs do not.
struct Internals {
  /// A manager of a root of which its user says more.
  static CheckpointManager manager(const std::filesystem::path& root, ManagerOptions options,
                                   const RootTerms& terms) {
    return CheckpointManager(root, std::move(options), terms);
  }

  /// Returns when the save has ended; whether it is committed. The error stays for wait().
  static bool settle(const PendingSave& save) { return save.settle(); }

  /// A reader that opens shard files only when something of them is read, however few there are,
  /// and does not notice before that one is not there.
  static CheckpointReader reader_as_needed(const std::filesystem::path& directory,
                                           const ReadOptions& options) {
    return CheckpointReader(directory, options, true);
  }

  /// A reader of what was opened by other means.
  static CheckpointReader reader_of(StoredCheckpoint checkpoint) {
    return CheckpointReader(std::move(checkpoint));
  }
};

}  // namespace shardwise::detail
