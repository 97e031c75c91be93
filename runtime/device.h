#pragma once

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "shardwise/runtime/memory/buffer.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/runtime/process/process_group.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/mesh.h"

namespace shardwise {

class Timeline;

/// Bytes that one device exchanged with others, as the transfer plans counted them.
struct TrafficStats {
  std::size_t sent_bytes = 0;
  std::size_t received_bytes = 0;
};

/// An emulated device: a number, its process, a memory arena with a capacity, and counters. It has
/// no thread of its own. Thread-safe.
class Device {
 public:
  DeviceId id() const { return id_; }

  /// The rank of the process that owns it, which is this one.
  int process() const { return process_; }

  /// Uninitialised memory. Freed memory is kept for buffers of the same size, as long as all memory
  /// together does not exceed the peak. `label` names its use in errors ("w1", "grad w1"). Throws
  /// resource_exhausted if it would exceed the capacity, naming the device, the bytes requested and
  /// in use, the capacity and the largest buffers with their labels.
  std::shared_ptr<Buffer> allocate(std::size_t size_bytes, MemoryKind kind, std::string_view label);

  /// Memory for several buffers. It is not counted; the buffers placed in it are.
  std::shared_ptr<const Block> make_block(std::size_t size_bytes);

  /// The bytes [offset, offset + size) of a block of this device as a buffer. The caller makes sure
  /// that buffers in use at the same time do not overlap. Throws invalid_argument if the block is
  /// another device's or does not hold those bytes, and as allocate() does.
  std::shared_ptr<Buffer> place(std::shared_ptr<const Block> block, std::size_t offset_bytes,
                                std::size_t size_bytes, MemoryKind kind, std::string_view label);

  MemoryStats memory() const;

  /// Sets the peak to the bytes in use now.
  void reset_peak();

  TrafficStats traffic() const;
  void count_sent(std::size_t bytes) { sent_bytes_ += bytes; }
  void count_received(std::size_t bytes) { received_bytes_ += bytes; }

 private:
  friend class Devices;
  Device(DeviceId id, int process, std::size_t capacity_bytes);

  DeviceId id_;
  int process_;
  std::shared_ptr<Arena> arena_;
  std::atomic<std::size_t> sent_bytes_{0}, received_bytes_{0};
};

/// Makes buffers of one device that are filled, and mostly dropped, together, like those of a
/// restore. Small buffers are placed side by side in blocks of up to 2 MiB: for very many buffers,
/// getting pages for each takes longer than filling them. A block is freed when the batch and all
/// its buffers are gone; each buffer is counted by itself. The device must outlive the batch, not
/// its buffers. Thread-compatible.
///
///   BufferBatch batch(devices.at(0));
///   for (const std::size_t size : sizes) batch.expect(size);
///   for (const std::size_t size : sizes) buffers.push_back(batch.allocate(size, kind, "w"));
class BufferBatch {
 public:
  explicit BufferBatch(Device& device) : device_(&device) {}

  /// Announces one later allocate() of this size; blocks never exceed the announced total.
  void expect(std::size_t size_bytes);

  /// As Device::allocate.
  std::shared_ptr<Buffer> allocate(std::size_t size_bytes, MemoryKind kind, std::string_view label);

 private:
  Device* device_;
  std::size_t expected_bytes_ = 0;
  std::shared_ptr<const Block> block_;
  std::size_t used_bytes_ = 0;  // of the block
};

struct DevicesOptions {
  /// Capacity of each device's memory. The default is no limit.
  std::size_t capacity_bytes = SIZE_MAX;

  /// Worker threads that compute for all the devices; 0: one for each core of the machine.
  int threads = 0;

  /// The processes over which the devices are spread: process p of P owns each device d with
  /// d * P / devices == p. All processes make equal Devices. Then each makes the same calls that
  /// move data between devices, in the same order, from one thread.
  ProcessGroup group = {};

  /// Records the work of programs and loaders on the devices; null: no recording.
  std::shared_ptr<Timeline> timeline = {};
};

/// The emulated devices 0 .. size-1 of a job and the workers that compute for them. With several
/// processes each has some of the devices, and can reach only the memory of these.
///
/// Owns its devices; arrays may outlive it (their memory lives until they drop it). Thread-safe.
///
///   Devices devices(8, {.capacity_bytes = std::size_t{1} << 30});
///   devices.at(3).memory().peak_bytes;
class Devices {
 public:
  /// Throws invalid_argument if size < 1, or there are fewer devices than processes.
  explicit Devices(std::int64_t size, const DevicesOptions& options = {});
  template <std::integral Bytes>
  Devices(std::int64_t, Bytes) = delete;  // Devices(8, {.capacity_bytes = 1 << 20})
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  std::int64_t size() const;

  /// Throws not_found, naming the device, and the number of devices or the process that has it.
  Device& at(DeviceId id) const;

  /// The rank of the process that owns the device. Throws not_found if the device does not exist.
  int process_of(DeviceId id) const { return process_of(id, size_, group_.size()); }

  /// The same for any number of devices and processes: the rule that divides devices.
  static int process_of(DeviceId id, std::int64_t devices, int processes);

  /// True if this process owns the device. Throws not_found if it does not exist.
  bool is_addressable(DeviceId id) const { return process_of(id) == group_.rank(); }

  /// The devices of this process, whose memory it can reach, ascending.
  std::span<const DeviceId> addressable() const { return addressable_; }

  /// The processes of the job. Only the devices use its operations.
  const ProcessGroup& group() const { return group_; }

  const Executor& executor() const { return executor_; }

  /// Null without recording.
  const std::shared_ptr<Timeline>& timeline() const { return timeline_; }

 private:
  Executor executor_;
  std::shared_ptr<Timeline> timeline_;
  ProcessGroup group_;
  std::int64_t size_;
  std::vector<std::unique_ptr<Device>> devices_;  // this process's
  std::vector<DeviceId> addressable_;
};

}  // namespace shardwise
