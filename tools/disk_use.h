#pragma once

#include <cstddef>
#include <filesystem>
#include <set>
#include <utility>

namespace shardwise::tools {

/// The bytes of files, each counted once whatever names it has.
class DiskUse {
 public:
  /// Adds a file, or all files below a directory; a symbolic link or a file that has vanished
  /// counts nothing. Throws io.
  void add(const std::filesystem::path& path);

  std::size_t bytes() const { return bytes_; }

  /// The part in files with a further name elsewhere: they stay if these names go.
  std::size_t shared_bytes() const { return shared_bytes_; }

 private:
  std::set<std::pair<std::size_t, std::size_t>> seen_;  // device and inode, of files with names
  std::size_t bytes_ = 0, shared_bytes_ = 0;
};

DiskUse disk_use(const std::filesystem::path& path);

}  // namespace shardwise::tools
