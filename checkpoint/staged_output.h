#pragma once

#include <filesystem>
#include <memory>

#include "shardwise/shard/error.h"

namespace shardwise {

class FileSystem;

/// A file or folder in the making, which has its name when all of it is on the disk. Until then it
/// is in a hidden directory next to its place, with a lease, as a checkpoint's attempt is: if the
/// process is killed, the next output there removes it.
/// Thread-compatible.
class StagedOutput {
 public:
  /// Makes the hidden directory next to `target`, whose name may be anything, and removes leftovers
  /// of dead processes there. The file system must outlive it. Throws not_found if the folder above
  /// is not there, io.
  StagedOutput(FileSystem& file_system, const std::filesystem::path& target);

  /// Removes the output unless it was published.
  ~StagedOutput();
  StagedOutput(const StagedOutput&) = delete;
  StagedOutput& operator=(const StagedOutput&) = delete;

  /// Where the file or folder is to be made; nothing is there yet.
  const std::filesystem::path& place() const;

  /// Renames place(), whose content is on the disk, to the target, and returns when the name is on
  /// the disk, too. `replaces`: the target is there, and is removed; if the file system cannot
  /// exchange the two in one step, neither has the name for a moment. Throws already_exists if the
  /// target is there but is not to be replaced, io.
  void publish(bool replaces);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardwise
