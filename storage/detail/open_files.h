#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "shardwise/shard/host/mutex.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// The files of a checkpoint or model, opened when they are needed. Only kMostOpen stay open, since
/// there may be more files than a process may open. Thread-safe.
class OpenFiles {
 public:
  static constexpr std::size_t kMostOpen = 64;

  /// `open` opens file number 0 <= i < count for reading; called by any thread.
  OpenFiles(std::size_t count, std::function<std::unique_ptr<File>(std::size_t)> open)
      : open_(std::move(open)), files_(count), first_added_(count) {}

  /// Adds a file that `open` opens, and returns its number.
  std::size_t add(std::function<std::unique_ptr<File>()> open);

  /// The file stays open for its holder, even if it is opened again for others. Throws as `open`
  /// does.
  std::shared_ptr<File> at(std::size_t number);

  /// Files are read with File::read_once from now on.
  void read_once();

 private:
  const std::function<std::unique_ptr<File>(std::size_t)> open_;
  Mutex mutex_;
  bool read_once_ SHARDWISE_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<File>> files_ SHARDWISE_GUARDED_BY(mutex_);  // null: not open
  const std::size_t first_added_;
  std::vector<std::function<std::unique_ptr<File>()>> added_ SHARDWISE_GUARDED_BY(mutex_);
  std::deque<std::size_t> opened_ SHARDWISE_GUARDED_BY(mutex_);  // the first one first
};

}  // namespace shardwise::detail
