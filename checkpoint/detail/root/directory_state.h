#pragma once

#include <sys/stat.h>

#include <filesystem>

namespace shardwise::detail {

/// The directory that a path led to, and when its entries or its name changed last. If something
/// was wrong with a checkpoint, and this has changed since, nothing is proved: somebody has removed
/// or replaced it in between. Immutable.
class DirectoryState {
 public:
  /// There need not be one.
  explicit DirectoryState(const std::filesystem::path& path) {
    if (::stat(path.c_str(), &status_) != 0) status_ = {};
  }

  bool exists() const { return status_.st_mode != 0; }

  /// For a file: when its bytes changed last, in seconds since 1970.
  std::int64_t modified_seconds() const { return status_.st_mtim.tv_sec; }

  bool operator==(const DirectoryState& other) const {
    return status_.st_dev == other.status_.st_dev && status_.st_ino == other.status_.st_ino &&
           same(status_.st_mtim, other.status_.st_mtim) &&
           same(status_.st_ctim, other.status_.st_ctim);
  }

 private:
  static bool same(const timespec& a, const timespec& b) {
    return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
  }

  struct stat status_ {};
};

}  // namespace shardwise::detail
