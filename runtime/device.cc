#include "shardwise/runtime/device.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <unordered_map>
#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise {
namespace {

constexpr std::align_val_t kAlignment{64};

// Buffers of at least so much begin on a page: a checkpoint writes them from where they lie, past
// the page cache.
constexpr std::size_t kLeastPagedBytes = std::size_t{64} << 10;
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kBuffersInMessage = 5;

// Larger buffers are kept for the next one of their size: the system gives fresh memory out page by
// page, which costs several times what filling it does.
constexpr std::size_t kLeastKeptBytes = std::size_t{64} << 10;

// Buffers of at least so much lie on huge pages where the system has them: a restore into
// fresh ones takes half the time (1.15 against 2.3 GB/s), and copies miss fewer translations.
constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// What a batch makes blocks for, and how large they are at most.
constexpr std::size_t kLeastOwnBytes = std::size_t{64} << 10;
constexpr std::size_t kBlockBytes = kHugePageBytes;

std::size_t padded(std::size_t size_bytes) {
  constexpr auto to = static_cast<std::size_t>(kAlignment);
  return (size_bytes + to - 1) / to * to;
}

std::align_val_t alignment(std::size_t size_bytes) {
  if (size_bytes >= kHugePageBytes) return std::align_val_t{kHugePageBytes};
  return size_bytes >= kLeastPagedBytes ? std::align_val_t{kPageBytes} : kAlignment;
}

std::byte* fresh_memory(std::size_t size_bytes) {
  void* const memory = ::operator new(size_bytes, alignment(size_bytes));
  // The pages that the buffer fills, lest it takes more than it asks for. Where the advice is
  // refused, small pages do.
  if (size_bytes >= kHugePageBytes) {
    ::madvise(memory, size_bytes / kHugePageBytes * kHugePageBytes, MADV_HUGEPAGE);
  }
  return static_cast<std::byte*>(memory);
}

void give_back(std::byte* memory, std::size_t size_bytes) {
  ::operator delete(memory, alignment(size_bytes));
}

}  // namespace

std::string_view name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::array:
      return "array";
    case MemoryKind::loader:
      return "loader";
  }
  return "unknown";
}

/// One device's memory: what is held, by whom, and how much more may be. Thread-safe.
class Arena : public std::enable_shared_from_this<Arena> {
 public:
  Arena(DeviceId device, std::size_t capacity_bytes) : device_(device) {
    stats_.capacity_bytes = capacity_bytes;
  }

  ~Arena() {
    for (const auto& [size, memory] : kept_) give_back(memory, size);
  }
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  DeviceId device() const { return device_; }

  /// In `part`, which has room for it, or in memory of its own where that is null.
  std::shared_ptr<Buffer> allocate(std::size_t size_bytes, MemoryKind kind, std::string_view label,
                                   std::shared_ptr<std::byte> part = nullptr) {
    struct Made : Buffer {  // for std::make_shared: only an arena makes buffers
      Made(std::shared_ptr<Arena> arena, std::size_t bytes, MemoryKind what, std::string_view text)
          : Buffer(std::move(arena), bytes, what, text) {}
    };
    // Whatever throws from here on, the buffer's destructor takes back as far as it got.
    auto buffer = std::make_shared<Made>(shared_from_this(), size_bytes, kind, label);
    book(*buffer);
    buffer->part_ = std::move(part);
    buffer->data_ = buffer->part_ != nullptr ? buffer->part_.get() : take_memory(size_bytes);
    return buffer;
  }

  /// Memory that parts of may be buffers. It is in no books.
  std::shared_ptr<std::byte> make_block(std::size_t size_bytes) {
    return {take_memory(size_bytes), [arena = shared_from_this(), size_bytes](std::byte* memory) {
              const MutexLock lock(arena->mutex_);
              arena->take_back(memory, size_bytes);
            }};
  }

  void release(Buffer& buffer) {
    const MutexLock lock(mutex_);
    if (buffer.part_ == nullptr) take_back(buffer.data_, buffer.size_bytes_);
    if (!buffer.booked_) return;
    stats_.in_use_bytes -= buffer.size_bytes_;
    stats_.in_use_by_kind[static_cast<std::size_t>(buffer.kind_)] -= buffer.size_bytes_;
    (buffer.older_ != nullptr ? buffer.older_->younger_ : oldest_) = buffer.younger_;
    (buffer.younger_ != nullptr ? buffer.younger_->older_ : youngest_) = buffer.older_;
  }

  MemoryStats stats() {
    const MutexLock lock(mutex_);
    return stats_;
  }

  void reset_peak() {
    const MutexLock lock(mutex_);
    stats_.peak_bytes = stats_.in_use_bytes;
    free_kept();
  }

 private:
  void book(Buffer& buffer) {
    const MutexLock lock(mutex_);
    if (buffer.size_bytes_ > stats_.capacity_bytes - stats_.in_use_bytes) {
      throw Error(ErrorCode::resource_exhausted, exhausted(buffer));
    }
    stats_.in_use_bytes += buffer.size_bytes_;
    stats_.in_use_by_kind[static_cast<std::size_t>(buffer.kind_)] += buffer.size_bytes_;
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.in_use_bytes);
    buffer.booked_ = true;
    buffer.older_ = youngest_;
    (youngest_ != nullptr ? youngest_->younger_ : oldest_) = &buffer;
    youngest_ = &buffer;
  }

  void take_back(std::byte* memory, std::size_t size_bytes) SHARDWISE_REQUIRES(mutex_) {
    if (memory == nullptr || size_bytes < kLeastKeptBytes) return give_back(memory, size_bytes);
    kept_.emplace(size_bytes, memory);
    kept_bytes_ += size_bytes;
  }

  std::byte* take_memory(std::size_t size_bytes) {
    {
      const MutexLock lock(mutex_);
      const auto found = kept_.find(size_bytes);
      if (found != kept_.end()) {
        std::byte* const memory = found->second;
        kept_.erase(found);
        kept_bytes_ -= size_bytes;
        return memory;
      }
      free_kept();
    }
    return fresh_memory(size_bytes);
  }

  /// What is in use and what is kept are never more than the peak of what was in use, but for what
  /// blocks hold beside their buffers.
  void free_kept() SHARDWISE_REQUIRES(mutex_) {
    while (!kept_.empty() && stats_.in_use_bytes + kept_bytes_ > stats_.peak_bytes) {
      kept_bytes_ -= kept_.begin()->first;
      give_back(kept_.begin()->second, kept_.begin()->first);
      kept_.erase(kept_.begin());
    }
  }

  std::string exhausted(const Buffer& wanted) const SHARDWISE_REQUIRES(mutex_) {
    std::string message =
        fmt::format("allocate \"{}\" ({}): device {} needs {} bytes, but {} of its {} are in use",
                    wanted.label_, name(wanted.kind_), device_, wanted.size_bytes_,
                    stats_.in_use_bytes, stats_.capacity_bytes);
    std::vector<const Buffer*> largest;
    for (const Buffer* held = oldest_; held != nullptr; held = held->younger_) {
      if (held->size_bytes_ > 0) largest.push_back(held);
    }
    std::stable_sort(largest.begin(), largest.end(), [](const Buffer* a, const Buffer* b) {
      return a->size_bytes_ > b->size_bytes_;
    });
    for (std::size_t i = 0; i < std::min(kBuffersInMessage, largest.size()); ++i) {
      const Buffer& held = *largest[i];
      message += fmt::format("{}\"{}\" ({}, {} bytes)", i == 0 ? "; largest: " : ", ", held.label_,
                             name(held.kind_), held.size_bytes_);
    }
    return message;
  }

  const DeviceId device_;
  Mutex mutex_;
  MemoryStats stats_ SHARDWISE_GUARDED_BY(mutex_);
  Buffer* oldest_ SHARDWISE_GUARDED_BY(mutex_) = nullptr;  // of those that are held
  Buffer* youngest_ SHARDWISE_GUARDED_BY(mutex_) = nullptr;
  std::unordered_multimap<std::size_t, std::byte*> kept_ SHARDWISE_GUARDED_BY(mutex_);
  std::size_t kept_bytes_ SHARDWISE_GUARDED_BY(mutex_) = 0;
};

Buffer::Buffer(std::shared_ptr<Arena> arena, std::size_t size_bytes, MemoryKind kind,
               std::string_view label)
    : arena_(std::move(arena)), size_bytes_(size_bytes), kind_(kind), label_(label) {}

Buffer::~Buffer() { arena_->release(*this); }

DeviceId Buffer::device() const { return arena_->device(); }

Device::Device(DeviceId id, std::size_t capacity_bytes)
    : id_(id), arena_(std::make_shared<Arena>(id, capacity_bytes)) {}

std::shared_ptr<Buffer> Device::allocate(std::size_t size_bytes, MemoryKind kind,
                                         std::string_view label) {
  return arena_->allocate(size_bytes, kind, label);
}

void BufferBatch::expect(std::size_t size_bytes) {
  if (size_bytes < kLeastOwnBytes) expected_bytes_ += padded(size_bytes);
}

std::shared_ptr<Buffer> BufferBatch::allocate(std::size_t size_bytes, MemoryKind kind,
                                              std::string_view label) {
  if (size_bytes == 0 || size_bytes >= kLeastOwnBytes) {
    return device_->allocate(size_bytes, kind, label);
  }
  const std::size_t bytes = padded(size_bytes);
  if (bytes > block_bytes_ && bytes <= expected_bytes_) {
    block_bytes_ = std::min(expected_bytes_, kBlockBytes);
    block_ = device_->arena_->make_block(block_bytes_);
  }
  if (bytes > block_bytes_) return device_->allocate(size_bytes, kind, label);
  auto buffer = device_->arena_->allocate(size_bytes, kind, label, block_);
  block_ = {block_, block_.get() + bytes};
  block_bytes_ -= bytes;
  expected_bytes_ -= std::min(expected_bytes_, bytes);
  return buffer;
}

MemoryStats Device::memory() const { return arena_->stats(); }

void Device::reset_peak() { arena_->reset_peak(); }

TrafficStats Device::traffic() const { return {sent_bytes_.load(), received_bytes_.load()}; }

Devices::Devices(std::int64_t size, DevicesOptions options) : executor_(options.threads) {
  if (size < 1) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("Devices: {} devices, needed at least 1", size));
  }
  for (DeviceId id = 0; id < size; ++id) {
    devices_.push_back(std::unique_ptr<Device>(new Device(id, options.capacity_bytes)));
    addressable_.push_back(id);
  }
}

Devices::~Devices() = default;

std::int64_t Devices::size() const { return static_cast<std::int64_t>(devices_.size()); }

Device& Devices::at(DeviceId id) const {
  if (id < 0 || id >= size()) {
    throw Error(ErrorCode::not_found,
                fmt::format("Devices::at: device {} is not among the {} devices", id, size()));
  }
  return *devices_[static_cast<std::size_t>(id)];
}

}  // namespace shardwise
