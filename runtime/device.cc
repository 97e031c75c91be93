#include "shardwise/runtime/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shardwise/runtime/memory/detail/arena.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

// Sizes of buffers that share blocks, the blocks' largest size, and the alignment of buffers in
// them.
constexpr std::size_t kLeastOwnBytes = std::size_t{64} << 10;
constexpr std::size_t kBlockBytes = std::size_t{2} << 20;
constexpr std::size_t kAlignment = 64;

std::size_t padded(std::size_t size_bytes) {
  return (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

Device::Device(DeviceId id, int process, std::size_t capacity_bytes)
    : id_(id), process_(process), arena_(std::make_shared<Arena>(id, capacity_bytes)) {}

std::shared_ptr<Buffer> Device::allocate(std::size_t size_bytes, MemoryKind kind,
                                         std::string_view label) {
  return arena_->allocate(size_bytes, kind, label);
}

std::shared_ptr<const Block> Device::make_block(std::size_t size_bytes) {
  return arena_->make_block(size_bytes);
}

std::shared_ptr<Buffer> Device::place(std::shared_ptr<const Block> block, std::size_t offset_bytes,
                                      std::size_t size_bytes, MemoryKind kind,
                                      std::string_view label) {
  return arena_->place(std::move(block), offset_bytes, size_bytes, kind, label);
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
  const auto fits = [&] { return block_ && bytes <= block_->size_bytes() - used_bytes_; };
  if (!fits() && bytes <= expected_bytes_) {
    block_ = device_->make_block(std::min(expected_bytes_, kBlockBytes));
    used_bytes_ = 0;
  }
  if (!fits()) return device_->allocate(size_bytes, kind, label);
  auto buffer = device_->place(block_, used_bytes_, size_bytes, kind, label);
  used_bytes_ += bytes;
  expected_bytes_ -= std::min(expected_bytes_, bytes);
  return buffer;
}

MemoryStats Device::memory() const { return arena_->stats(); }

void Device::reset_peak() { arena_->reset_peak(); }

TrafficStats Device::traffic() const { return {sent_bytes_.load(), received_bytes_.load()}; }

Devices::Devices(std::int64_t size, const DevicesOptions& options)
    : executor_(options.threads),
      timeline_(options.timeline),
      group_(options.group.duplicate()),
      size_(size) {
  if (size < 1) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("make devices: found {} devices, needed at least 1", size));
  }
  if (size < group_.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("make devices: found {} devices for {} processes, needed one for each",
                            size, group_.size()));
  }
  for (DeviceId id = 0; id < size; ++id) {
    if (!is_addressable(id)) continue;
    devices_.push_back(
        std::unique_ptr<Device>(new Device(id, group_.rank(), options.capacity_bytes)));
    addressable_.push_back(id);
  }
}

Devices::~Devices() = default;

std::int64_t Devices::size() const { return size_; }

int Devices::process_of(DeviceId id, std::int64_t devices, int processes) {
  if (id < 0 || id >= devices) {
    throw Error(ErrorCode::not_found,
                fmt::format("find a device: device {} is not among the {} devices", id, devices));
  }
  return static_cast<int>(id * processes / devices);
}

Device& Devices::at(DeviceId id) const {
  if (const int process = process_of(id); process != group_.rank()) {
    throw Error(ErrorCode::not_found,
                fmt::format("find a device: device {} is of process {}, this is process {}", id,
                            process, group_.rank()));
  }
  return *devices_[static_cast<std::size_t>(id - addressable_.front())];
}

}  // namespace shardwise
