#pragma once

#include <filesystem>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/root/marks/lease.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// The emptied files of a checkpoint that was removed, for the next save to write in: so the disk
/// has nothing to free, and need not find room that it has never been written to. It stays hidden
/// in its root as trash does; any cleaning up there may remove it at any time. Thread-compatible.
class Spare {
 public:
  /// Keeps the reference.
  explicit Spare(FileSystem& file_system) : file_system_(file_system) {}

  /// drop(), but not in a forked child.
  ~Spare() {
    if (maker_.is_this_process()) drop();
  }
  Spare(const Spare&) = delete;
  Spare& operator=(const Spare&) = delete;

  /// Moves the data files of a checkpoint, which has become trash, to a trash directory of their
  /// own, empties and keeps them in place of those kept before. A program that still copies the old
  /// directory then sees missing files, not files of zeros. Files that cannot be reused are
  /// removed. Throws io, having gone on; the next clean-up removes what stays.
  void keep(const std::filesystem::path& trash, const StepName& name);

  /// Removes it; the next clean-up of the root removes the rest.
  void drop() noexcept;

  /// Gives the directory another name, in the same root, and forgets it. False without a directory.
  /// Throws io; then it is kept.
  bool become(const std::filesystem::path& directory);

 private:
  void remove();
  void take(const std::filesystem::path& trash, const StepName& name);

  FileSystem& file_system_;
  Maker maker_;
  std::filesystem::path directory_;  // empty: none
};

}  // namespace shardwise::detail
