#include "shardwise/runtime/memory/detail/arena.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/shard/host/page_memory.h"

namespace shardwise {
namespace {

constexpr std::size_t kBuffersInMessage = 5;

// Larger blocks are kept for the next one of their size: the system hands out fresh memory page by
// page, which costs several times as much as filling it.
constexpr std::size_t kLeastKeptBytes = std::size_t{4} << 10;

}  // namespace

std::string_view name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::array:
      return "array";
    case MemoryKind::loader:
      return "loader";
    case MemoryKind::parameter:
      return "parameter";
    case MemoryKind::optimizer:
      return "optimizer";
    case MemoryKind::activation:
      return "activation";
    case MemoryKind::collective:
      return "collective";
    case MemoryKind::checkpoint:
      return "checkpoint";
  }
  return "unknown";
}

Block::Block(std::shared_ptr<Arena> arena, std::size_t size_bytes)
    : arena_(std::move(arena)), size_bytes_(size_bytes), data_(arena_->take_memory(size_bytes)) {}

Block::~Block() { arena_->take_back(data_, size_bytes_); }

Buffer::Buffer(std::shared_ptr<Arena> arena, std::size_t size_bytes, MemoryKind kind,
               std::string_view label)
    : arena_(std::move(arena)), size_bytes_(size_bytes), kind_(kind), label_(label) {}

Buffer::~Buffer() { arena_->strike(*this); }

DeviceId Buffer::device() const { return arena_->device(); }

Arena::Arena(DeviceId device, std::size_t capacity_bytes) : device_(device) {
  stats_.capacity_bytes = capacity_bytes;
}

Arena::~Arena() {
  for (const auto& [size, memory] : kept_) free_memory(memory, size);
}

std::shared_ptr<const Block> Arena::make_block(std::size_t size_bytes) {
  struct Made : Block {  // for std::make_shared: only an arena makes blocks
    Made(std::shared_ptr<Arena> arena, std::size_t bytes) : Block(std::move(arena), bytes) {}
  };
  return std::make_shared<const Made>(shared_from_this(), size_bytes);
}

std::shared_ptr<Buffer> Arena::allocate(std::size_t size_bytes, MemoryKind kind,
                                        std::string_view label) {
  auto buffer = book(size_bytes, kind, label);
  buffer->block_ = make_block(size_bytes);
  buffer->data_ = buffer->block_->data();
  return buffer;
}

std::shared_ptr<Buffer> Arena::place(std::shared_ptr<const Block> block, std::size_t offset_bytes,
                                     std::size_t size_bytes, MemoryKind kind,
                                     std::string_view label) {
  if (block == nullptr || block->arena_.get() != this || offset_bytes > block->size_bytes() ||
      size_bytes > block->size_bytes() - offset_bytes) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("place \"{}\" on device {}: {} bytes at offset {} of a block of {} bytes "
                    "on device {}, needed inside a block of the same device",
                    label, device_, size_bytes, offset_bytes,
                    block == nullptr ? 0 : block->size_bytes(),
                    block == nullptr ? device_ : block->arena_->device()));
  }
  auto buffer = book(size_bytes, kind, label);
  buffer->block_ = std::move(block);
  buffer->data_ = buffer->block_->data() + offset_bytes;
  return buffer;
}

MemoryStats Arena::stats() {
  const MutexLock lock(mutex_);
  return stats_;
}

void Arena::reset_peak() {
  const MutexLock lock(mutex_);
  stats_.peak_bytes = stats_.in_use_bytes;
}

std::shared_ptr<Buffer> Arena::book(std::size_t size_bytes, MemoryKind kind,
                                    std::string_view label) {
  struct Made : Buffer {  // as in make_block
    Made(std::shared_ptr<Arena> arena, std::size_t bytes, MemoryKind what, std::string_view text)
        : Buffer(std::move(arena), bytes, what, text) {}
  };
  auto buffer = std::make_shared<Made>(shared_from_this(), size_bytes, kind, label);
  const MutexLock lock(mutex_);
  if (size_bytes > stats_.capacity_bytes - stats_.in_use_bytes) {
    throw Error(ErrorCode::resource_exhausted, exhausted(*buffer));
  }
  stats_.in_use_bytes += size_bytes;
  stats_.in_use_by_kind[static_cast<std::size_t>(kind)] += size_bytes;
  stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.in_use_bytes);
  buffer->booked_ = true;
  buffer->older_ = youngest_;
  (youngest_ != nullptr ? youngest_->younger_ : oldest_) = buffer.get();
  youngest_ = buffer.get();
  return buffer;
}

void Arena::strike(Buffer& buffer) {
  const MutexLock lock(mutex_);
  if (!buffer.booked_) return;
  stats_.in_use_bytes -= buffer.size_bytes_;
  stats_.in_use_by_kind[static_cast<std::size_t>(buffer.kind_)] -= buffer.size_bytes_;
  (buffer.older_ != nullptr ? buffer.older_->younger_ : oldest_) = buffer.younger_;
  (buffer.younger_ != nullptr ? buffer.younger_->older_ : youngest_) = buffer.older_;
}

std::byte* Arena::take_memory(std::size_t size_bytes) {
  {
    const MutexLock lock(mutex_);
    taken_bytes_ += size_bytes;
    most_taken_bytes_ = std::max(most_taken_bytes_, taken_bytes_);
    const auto found = kept_.find(size_bytes);
    if (found != kept_.end()) {
      std::byte* const memory = found->second;
      kept_.erase(found);
      kept_bytes_ -= size_bytes;
      return memory;
    }
    free_kept();
  }
  try {
    return allocate_memory(size_bytes);
  } catch (...) {
    const MutexLock lock(mutex_);
    taken_bytes_ -= size_bytes;
    throw;
  }
}

void Arena::take_back(std::byte* memory, std::size_t size_bytes) noexcept {
  const MutexLock lock(mutex_);
  taken_bytes_ -= size_bytes;
  if (size_bytes < kLeastKeptBytes) return free_memory(memory, size_bytes);
  try {
    kept_.emplace(size_bytes, memory);
    kept_bytes_ += size_bytes;
  } catch (...) {  // no memory for the note
    free_memory(memory, size_bytes);
  }
}

void Arena::free_kept() {
  while (!kept_.empty() && taken_bytes_ + kept_bytes_ > most_taken_bytes_) {
    kept_bytes_ -= kept_.begin()->first;
    free_memory(kept_.begin()->second, kept_.begin()->first);
    kept_.erase(kept_.begin());
  }
}

std::string Arena::exhausted(const Buffer& wanted) const {
  std::string message = fmt::format(
      "allocate \"{}\" ({}): device {}: found {} bytes free, needed {}; in use are {} of {}",
      wanted.label_, name(wanted.kind_), device_, stats_.capacity_bytes - stats_.in_use_bytes,
      wanted.size_bytes_, stats_.in_use_bytes, stats_.capacity_bytes);
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

}  // namespace shardwise
