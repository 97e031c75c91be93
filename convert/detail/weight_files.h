#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "shardwise/shard/host/mutex.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// A model's files, of which at most kMostOpen are open: there may be more than a process may open.
/// Links are followed, as caches of downloads are made of them. Thread-safe, but for add().
class WeightFiles {
 public:
  static constexpr std::size_t kMostOpen = 64;

  explicit WeightFiles(std::shared_ptr<FileSystem> file_system)
      : file_system_(std::move(file_system)) {}

  /// Opens a file; its number is that of calls before. Throws not_found, corrupt, io.
  std::shared_ptr<File> add(const std::filesystem::path& path);

  /// Valid as long as it is held, though it may be opened anew for others. Throws what opening it
  /// throws, and corrupt where it has another size than before.
  std::shared_ptr<File> at(std::size_t number);

  const std::filesystem::path& path(std::size_t number) const { return files_[number].path; }
  std::uint64_t size(std::size_t number) const { return files_[number].size; }

 private:
  struct Entry {
    std::filesystem::path path;
    std::uint64_t size;
  };

  std::shared_ptr<File> open(const std::filesystem::path& path);
  void keep(std::size_t number, std::shared_ptr<File> file);

  const std::shared_ptr<FileSystem> file_system_;
  std::vector<Entry> files_;
  Mutex mutex_;
  std::vector<std::shared_ptr<File>> open_ SHARDWISE_GUARDED_BY(mutex_);  // null: not open
  std::deque<std::size_t> opened_ SHARDWISE_GUARDED_BY(mutex_);           // the first one first
};

}  // namespace shardwise::detail
