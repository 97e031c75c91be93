#pragma once

#include <filesystem>

#include "shardwise/checkpoint/detail/file.h"

namespace shardwise::detail {

/// The emptied files of a checkpoint that was removed, in which the next save writes: so the disk
/// has nothing to free, and need not find room that it has never been written to. It stays hidden
/// in its root as trash does; whoever cleans up there may remove it at any time. Thread-compatible.
class Spare {
 public:
  /// Keeps the reference.
  explicit Spare(FileSystem& file_system) : file_system_(file_system) {}

  /// Removes it; what cannot be removed the next clean-up of the root does.
  ~Spare();
  Spare(const Spare&) = delete;
  Spare& operator=(const Spare&) = delete;

  /// Empties trash and keeps it, in the place of what was kept before. Files that cannot be reused
  /// are removed, and so are those that every checkpoint has. Throws io; then there is no spare.
  void keep(const std::filesystem::path& trash);

  /// Gives the directory another name, in the same root, and forgets it. False: there is none.
  /// Throws io; then it is kept.
  bool become(const std::filesystem::path& directory);

 private:
  void remove();

  FileSystem& file_system_;
  std::filesystem::path directory_;  // empty: none
  bool ready_ = false;
};

}  // namespace shardwise::detail
