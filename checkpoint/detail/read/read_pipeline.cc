#include "shardwise/checkpoint/detail/read/read_pipeline.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <new>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "shardwise/runtime/mutex.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

// One read fetches up to so many bytes, those between two items among them where they are few.
// Larger ones gain nothing from a disk and leave the processor's caches before they are used
// (measured hot: 4.0 GB/s with 2 MiB, 3.5 with 8 MiB); a hole of 64 KiB takes less time than
// another read.
constexpr std::uint64_t kExtentBytes = std::uint64_t{2} << 20;
constexpr std::uint64_t kHoleBytes = std::uint64_t{64} << 10;
constexpr std::size_t kReaders = 2;

/// What one read fetches: some items that follow one another in a file.
struct Extent {
  std::size_t first_item, num_items;
  std::uint64_t begin, end;
  std::byte* destination;
};

/// Whether the item can be read together with the extent before it.
bool joins(const Extent& extent, const ReadItem& before, const ReadItem& item,
           std::uint64_t extent_bytes) {
  if (item.file != before.file || item.address + item.bytes - extent.begin > extent_bytes) {
    return false;
  }
  if (extent.destination == nullptr && item.destination == nullptr) {
    return item.address - extent.end <= kHoleBytes;
  }
  return extent.destination != nullptr && item.address == extent.end &&
         item.destination == before.destination + before.bytes;
}

std::vector<Extent> make_extents(std::span<const ReadItem> items, std::uint64_t extent_bytes) {
  std::vector<Extent> extents;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const ReadItem& item = items[i];
    if (i == 0 || !joins(extents.back(), items[i - 1], item, extent_bytes)) {
      extents.push_back({i, 0, item.address, item.address, item.destination});
    }
    ++extents.back().num_items;
    extents.back().end = item.address + item.bytes;
  }
  return extents;
}

/// Uninitialised memory on a page boundary, as O_DIRECT and large copies like it.
class ReadBuffer {
 public:
  explicit ReadBuffer(std::size_t bytes)
      : data_(static_cast<std::byte*>(::operator new(bytes, kAlignment))) {}
  ReadBuffer(ReadBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  ReadBuffer& operator=(ReadBuffer&&) = delete;
  ~ReadBuffer() { ::operator delete(data_, kAlignment); }

  std::byte* data() const { return data_; }

 private:
  static constexpr std::align_val_t kAlignment{4096};
  std::byte* data_;
};

/// The extents on their way from the readers to the caller, and the buffers on their way back.
class Pipeline {
 public:
  Pipeline(const ReadJob& job, const Executor& executor);

  void run();

 private:
  struct Filled {
    std::size_t extent;
    std::byte* data;
  };
  struct Arrived {
    std::size_t item;
    std::span<const std::byte> bytes;
    std::size_t filled;  // number in the batch
  };

  void read_extent(const Extent& extent, std::byte* data) const;
  void reader(const std::stop_token& stop);
  std::vector<Filled> take_filled();
  void consume(const std::vector<Filled>& batch);
  void give_back(std::byte* buffer);

  const ReadJob& job_;
  const Executor& executor_;
  std::vector<Extent> extents_;
  std::vector<ReadBuffer> buffers_;

  Mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<std::byte*> free_ SHARDWISE_GUARDED_BY(mutex_);
  std::size_t next_ SHARDWISE_GUARDED_BY(mutex_) = 0;
  std::vector<Filled> filled_ SHARDWISE_GUARDED_BY(mutex_);
  std::size_t being_read_ SHARDWISE_GUARDED_BY(mutex_) = 0;
  // Of all extents that cannot be read, the first one's: the same whichever thread was faster.
  std::size_t failed_ SHARDWISE_GUARDED_BY(mutex_) = 0;
  std::exception_ptr error_ SHARDWISE_GUARDED_BY(mutex_);
};

Pipeline::Pipeline(const ReadJob& job, const Executor& executor) : job_(job), executor_(executor) {
  // Readers and workers need some buffers each, or they would wait for one another.
  const std::uint64_t share = job.buffer_bytes / (2 * kReaders);
  extents_ = make_extents(job.items, std::min(share, kExtentBytes));
  std::size_t largest = 0, buffered = 0;
  for (const Extent& extent : extents_) {
    if (extent.destination != nullptr) continue;
    ++buffered;
    largest = std::max(largest, static_cast<std::size_t>(extent.end - extent.begin));
  }
  if (buffered == 0) return;
  const std::size_t affordable = std::max<std::size_t>(1, job.buffer_bytes / largest);
  // One in work and one waiting for each thread.
  const std::size_t useful = 2 * (kReaders + static_cast<std::size_t>(executor.threads()));
  const std::size_t count = std::min({affordable, buffered, useful});
  for (std::size_t i = 0; i < count; ++i) buffers_.emplace_back(largest);
  for (const ReadBuffer& buffer : buffers_) free_.push_back(buffer.data());
}

void Pipeline::read_extent(const Extent& extent, std::byte* data) const {
  const ReadItem& first = job_.items[extent.first_item];
  try {
    job_.files[first.file]->read_at(extent.begin, data,
                                    static_cast<std::size_t>(extent.end - extent.begin));
  } catch (const Error& e) {
    throw Error(e.code(), fmt::format("read {}: {}", job_.describe(extent.first_item), e.what()));
  }
}

void Pipeline::reader(const std::stop_token& stop) {
  for (;;) {
    std::size_t number = 0;
    std::byte* data = nullptr;
    {
      MutexLock lock(mutex_);
      changed_.wait(mutex_, stop, [this]() SHARDWISE_REQUIRES(mutex_) {
        return error_ || next_ == extents_.size() || extents_[next_].destination != nullptr ||
               !free_.empty();
      });
      if (stop.stop_requested() || error_ || next_ == extents_.size()) return;
      number = next_++;
      ++being_read_;
      data = extents_[number].destination;
      if (data == nullptr) {
        data = free_.back();
        free_.pop_back();
      }
    }
    std::exception_ptr error;
    try {
      read_extent(extents_[number], data);
    } catch (...) {
      error = std::current_exception();
    }
    MutexLock lock(mutex_);
    --being_read_;
    if (error) {
      if (!error_ || number < failed_) {
        error_ = error;
        failed_ = number;
      }
    } else {
      filled_.push_back({number, data});
    }
    changed_.notify_all();
    if (error) return;
  }
}

std::vector<Pipeline::Filled> Pipeline::take_filled() {
  MutexLock lock(mutex_);
  while (error_ ? being_read_ != 0 : filled_.empty()) changed_.wait(mutex_);
  if (error_) std::rethrow_exception(error_);
  return std::exchange(filled_, {});
}

void Pipeline::give_back(std::byte* buffer) {
  MutexLock lock(mutex_);
  free_.push_back(buffer);
  changed_.notify_all();
}

void Pipeline::consume(const std::vector<Filled>& batch) {
  std::vector<Arrived> arrived;
  std::vector<std::atomic<std::size_t>> left(batch.size());
  for (std::size_t b = 0; b < batch.size(); ++b) {
    const Extent& extent = extents_[batch[b].extent];
    left[b] = extent.num_items;
    for (std::size_t i = extent.first_item; i < extent.first_item + extent.num_items; ++i) {
      const ReadItem& item = job_.items[i];
      arrived.push_back({i, {batch[b].data + (item.address - extent.begin), item.bytes}, b});
    }
  }
  const auto body = [&](std::size_t i) {
    const Arrived& a = arrived[i];
    job_.consume(a.item, a.bytes);
    const Filled& filled = batch[a.filled];
    if (--left[a.filled] == 0 && extents_[filled.extent].destination == nullptr) {
      give_back(filled.data);
    }
  };
  if (arrived.size() == 1) {
    // Not worth the workers, and then small reads may come from any thread, even a worker.
    body(0);
    if (job_.progress) job_.progress();
    return;
  }
  const auto count = static_cast<std::int64_t>(arrived.size());
  const std::int64_t width = job_.width == 0 ? count : job_.width;
  for (std::int64_t begin = 0; begin < count; begin += width) {
    executor_.parallel_for(std::min(width, count - begin),
                           [&](std::int64_t i) { body(static_cast<std::size_t>(begin + i)); });
    if (job_.progress) job_.progress();
  }
}

void Pipeline::run() {
  if (extents_.empty()) return;
  if (extents_.size() == 1) {
    // Nothing to overlap: a thread would only cost its start.
    const Extent& extent = extents_.front();
    std::byte* const data =
        extent.destination != nullptr ? extent.destination : buffers_.front().data();
    read_extent(extent, data);
    consume({{0, data}});
    return;
  }
  // Whatever is thrown below, the threads are asked to stop and joined.
  std::vector<std::jthread> readers;
  for (std::size_t i = 0; i < std::min(kReaders, extents_.size()); ++i) {
    readers.emplace_back([this](const std::stop_token& stop) { reader(stop); });
  }
  for (std::size_t done = 0; done < extents_.size();) {
    const std::vector<Filled> batch = take_filled();
    consume(batch);
    done += batch.size();
  }
}

}  // namespace

void divide_budget(ReadJob& job, std::size_t budget_bytes, std::size_t call_bytes,
                   const Executor& executor) {
  const auto threads = static_cast<std::size_t>(executor.threads());
  std::size_t calls_bytes = 0;
  if (call_bytes != 0) {
    const std::size_t calls = std::clamp<std::size_t>(budget_bytes / 2 / call_bytes, 1, threads);
    if (calls < threads) job.width = static_cast<std::int64_t>(calls);
    calls_bytes = calls * call_bytes;
  }
  job.buffer_bytes = budget_bytes - std::min(budget_bytes, calls_bytes);
}

void run_read_job(const ReadJob& job, const Executor& executor) { Pipeline(job, executor).run(); }

}  // namespace shardwise::detail
