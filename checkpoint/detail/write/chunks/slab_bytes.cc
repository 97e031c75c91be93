#include "shardwise/checkpoint/detail/write/chunks/slab_bytes.h"

#include <cstdint>
#include <cstring>

#include "shardwise/shard/host/page_memory.h"

namespace shardwise::detail {
namespace {

// A run of its own costs the kernel as much as copying a few pages.
constexpr std::size_t kLeastInPlaceBytes = std::size_t{64} << 10;

}  // namespace

void SlabBytes::add(std::size_t bytes) {
  room_ += bytes;
  size_ += bytes;
}

bool SlabBytes::takes(std::span<const std::byte> data) const {
  const auto address = reinterpret_cast<std::uintptr_t>(data.data());
  return data.size() >= kLeastInPlaceBytes && address % kPageBytes == 0 && size_ % kPageBytes == 0;
}

void SlabBytes::add_in_place(std::span<const std::byte> data) {
  end_run();
  const std::size_t whole = data.size() / kPageBytes * kPageBytes;
  if (!runs_.empty() && runs_.back().data + runs_.back().size == data.data()) {
    runs_.back().size += whole;
  } else {
    runs_.push_back({data.data(), whole});
  }
  size_ += whole;
  std::memcpy(room_, data.data() + whole, data.size() - whole);
  add(data.size() - whole);
}

void SlabBytes::pad_to(std::size_t multiple) {
  const std::size_t missing = (multiple - size_ % multiple) % multiple;
  std::memset(room_, 0, missing);
  add(missing);
}

std::span<const WriteRun> SlabBytes::runs() {
  end_run();
  return runs_;
}

void SlabBytes::end_run() {
  if (room_ == pending_) return;
  runs_.push_back({pending_, static_cast<std::size_t>(room_ - pending_)});
  pending_ = room_;
}

}  // namespace shardwise::detail
