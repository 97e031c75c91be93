#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <stop_token>
#include <thread>
#include <vector>

#include "shardwise/checkpoint/detail/file.h"
#include "shardwise/runtime/mutex.h"

namespace shardwise::detail {

/// What O_DIRECT asks of memory and places in files.
inline constexpr std::size_t kPageBytes = 4096;

/// How the host memory of a save is divided, within its budget.
struct StagingSizes {
  std::int64_t workers = 0;  ///< how many may gather and compress at once
  std::size_t buffer_bytes = 0;
  std::size_t buffers = 0;

  bool operator==(const StagingSizes&) const = default;
};

/// The least budget there can be: one worker, and two buffers of one chunk each.
inline constexpr std::size_t kLeastBudgetBytes = std::size_t{8} << 20;

/// Sizes for writing about `data_bytes`. Throws invalid_argument where the budget is too small.
StagingSizes staging_sizes(std::size_t budget_bytes, int threads, std::size_t data_bytes);

/// A fixed number of page-aligned buffers, touched once and used again and again: memory that the
/// system has yet to find costs a save more than writing it. Thread-compatible.
class StagingPool {
 public:
  explicit StagingPool(const StagingSizes& sizes);

  const StagingSizes& sizes() const { return sizes_; }
  std::byte* buffer(std::size_t number) { return memory_.get() + number * sizes_.buffer_bytes; }

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };

  StagingSizes sizes_;
  std::unique_ptr<std::byte[], Free> memory_;
};

/// Two threads that write filled buffers to a file while others are being filled. Workers that
/// compute never wait for the disk; who takes buffers does. Destroyed, it drops what is not written
/// yet. Thread-safe.
class StagingWriter {
 public:
  /// Keeps references; both must outlive it.
  StagingWriter(File& file, StagingPool& pool);

  /// Waits until `least` buffers are free and returns their numbers, or up to `most`. Throws what
  /// a write threw. Requires least <= number of buffers.
  std::vector<std::size_t> take(std::size_t least, std::size_t most);

  /// Gives a taken buffer to be written and then to be free again; size 0 writes nothing.
  void write(std::size_t buffer, std::size_t size_bytes, std::uint64_t address);

  /// Waits until everything is written. Throws what a write threw.
  void finish();

 private:
  struct Job {
    std::size_t buffer;
    std::size_t size_bytes;
    std::uint64_t address;
  };

  void run(const std::stop_token& stop);
  void wait_for_free(std::size_t count) SHARDWISE_REQUIRES(mutex_);

  File& file_;
  StagingPool& pool_;

  Mutex mutex_;
  CondVar changed_;
  std::deque<Job> jobs_ SHARDWISE_GUARDED_BY(mutex_);
  std::vector<std::size_t> free_ SHARDWISE_GUARDED_BY(mutex_);
  std::exception_ptr error_ SHARDWISE_GUARDED_BY(mutex_);

  // Last: whatever ends the life of this asks them to stop and joins them first, also where the
  // second one cannot be started.
  std::array<std::jthread, 2> threads_;
};

}  // namespace shardwise::detail
