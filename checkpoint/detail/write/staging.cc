#include "shardwise/checkpoint/detail/write/staging.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// Writes of 8 MiB reach the disk's full rate; larger ones gain nothing (research: 3.4 GB/s of 3.5).
constexpr std::size_t kMostBufferBytes = std::size_t{8} << 20;

// A chunk gathered, one more for the parts of an edge chunk, one shuffled, and zstd's own.
constexpr std::size_t kWorkerBytes = 5 * kChunkBytes;

}  // namespace

StagingSizes staging_sizes(std::size_t budget_bytes, int threads, std::size_t data_bytes) {
  if (budget_bytes < kLeastBudgetBytes) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("save: memory_budget_bytes is {}, at least {} are needed", budget_bytes,
                            kLeastBudgetBytes));
  }
  // A batch of two buffers per worker is filled while the batch before it is being written.
  auto workers = static_cast<std::size_t>(threads);
  while (workers > 1 && budget_bytes < workers * (kWorkerBytes + 2 * kChunkBytes)) --workers;
  const std::size_t rest = budget_bytes - workers * kWorkerBytes;
  const std::size_t wanted = 4 * workers + 2;
  const std::size_t chunks_needed = std::max<std::size_t>(data_bytes / kChunkBytes + 1, 2);

  StagingSizes sizes;
  sizes.workers = static_cast<std::int64_t>(workers);
  sizes.buffer_bytes = std::min(kMostBufferBytes, rest / wanted);
  // Little data: as many buffers as workers, so that each has something to do.
  sizes.buffer_bytes = std::min(sizes.buffer_bytes, chunks_needed / workers * kChunkBytes);
  sizes.buffer_bytes =
      std::max(sizes.buffer_bytes / kChunkBytes * kChunkBytes, std::size_t{kChunkBytes});
  const std::size_t needed = chunks_needed * kChunkBytes / sizes.buffer_bytes + 1;
  sizes.buffers = std::min({wanted, rest / sizes.buffer_bytes, needed});
  return sizes;
}

StagingPool::StagingPool(const StagingSizes& sizes) : sizes_(sizes) {
  const std::size_t bytes = sizes.buffers * sizes.buffer_bytes;
  memory_.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kPageBytes})));
  std::memset(memory_.get(), 0, bytes);
}

void StagingPool::Free::operator()(std::byte* memory) const {
  ::operator delete (memory, std::align_val_t{kPageBytes});
}

StagingWriter::StagingWriter(File& file, StagingPool& pool) : file_(file), pool_(pool) {
  {
    const MutexLock lock(mutex_);
    for (std::size_t i = pool.sizes().buffers; i-- > 0;) free_.push_back(i);
  }
  for (std::jthread& thread : threads_) {
    thread = std::jthread([this](const std::stop_token& stop) { run(stop); });
  }
}

std::vector<std::size_t> StagingWriter::take(std::size_t least, std::size_t most) {
  const MutexLock lock(mutex_);
  wait_for_free(least);
  const std::size_t count = std::min(most, free_.size());
  std::vector<std::size_t> taken(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
  free_.resize(free_.size() - count);
  return taken;
}

void StagingWriter::write(std::size_t buffer, std::size_t size_bytes, std::uint64_t address) {
  {
    const MutexLock lock(mutex_);
    jobs_.push_back({buffer, size_bytes, address});
  }
  changed_.notify_all();
}

void StagingWriter::finish() {
  const MutexLock lock(mutex_);
  wait_for_free(pool_.sizes().buffers);
}

void StagingWriter::wait_for_free(std::size_t count) {
  while (!error_ && free_.size() < count) changed_.wait(mutex_);
  if (error_) std::rethrow_exception(error_);
}

void StagingWriter::run(const std::stop_token& stop) {
  for (;;) {
    Job job{};
    bool failed = false;
    {
      const MutexLock lock(mutex_);
      changed_.wait(mutex_, stop, [this]() SHARDWISE_REQUIRES(mutex_) { return !jobs_.empty(); });
      if (stop.stop_requested()) return;
      job = jobs_.front();
      jobs_.pop_front();
      failed = error_ != nullptr;
    }
    std::exception_ptr error;
    try {
      if (!failed && job.size_bytes > 0) {
        file_.write_at(job.address, pool_.buffer(job.buffer), job.size_bytes);
      }
    } catch (...) {
      error = std::current_exception();
    }
    {
      const MutexLock lock(mutex_);
      if (error && !error_) error_ = error;
      free_.push_back(job.buffer);
    }
    changed_.notify_all();
  }
}

}  // namespace shardwise::detail
