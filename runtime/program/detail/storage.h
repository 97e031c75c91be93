#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "shardwise/runtime/program/detail/program.h"
#include "shardwise/runtime/sharded_array.h"

namespace shardwise {

/// The memory of a program's values while it runs: for each value and mesh position its bytes.
/// Shares the given arrays and buffers. Thread-compatible; reading is safe from several threads.
class Storage {
 public:
  using ValueId = Program::ValueId;

  /// For programs over a mesh of `positions` devices.
  explicit Storage(std::int64_t positions) : positions_(static_cast<std::size_t>(positions)) {}

  /// A value that the program reads. Requires the value's sharding.
  void bind(ValueId value, ShardedArray array);

  /// A value that the program fills: one buffer per mesh position, each of exactly its box's bytes;
  /// null if the device is another process's.
  void bind(ValueId value, std::vector<std::shared_ptr<Buffer>> shards);

  /// One shard of a value that the program fills, or only reads, in memory that the caller keeps
  /// alive.
  void bind(ValueId value, std::int64_t position, std::byte* data);
  void bind(ValueId value, std::int64_t position, const std::byte* data);

  /// From now on `begun` becomes true when memory of the value's shards is requested for writing.
  /// Requires that the shards to be written are bound, and that `begun` stays valid as long as the
  /// storage.
  void watch(ValueId value, std::atomic<bool>& begun);

  /// Requires a bound value.
  const std::byte* data(ValueId value, std::int64_t position) const {
    return addresses_[index(value, position)].read;
  }

  /// Requires a bound value that was given as shards and is not finished.
  std::byte* writable(ValueId value, std::int64_t position) const {
    const Address& address = addresses_[index(value, position)];
    if (address.begun != nullptr) address.begun->store(true, std::memory_order_relaxed);
    return address.write;
  }

  /// From now on all filled values are arrays, and nothing writes to them.
  void finish(const Program& program, const Devices& devices);

  /// The value as an array; absent if it is to be filled and is not finished.
  const std::optional<ShardedArray>& array(ValueId value) const {
    return entries_[static_cast<std::size_t>(value)].array;
  }

 private:
  struct Address {
    const std::byte* read = nullptr;
    std::byte* write = nullptr;
    std::atomic<bool>* begun = nullptr;
  };
  struct Entry {
    std::vector<std::shared_ptr<Buffer>> shards;  // until finished
    std::optional<ShardedArray> array;
  };

  std::size_t index(ValueId value, std::int64_t position) const {
    return static_cast<std::size_t>(value) * positions_ + static_cast<std::size_t>(position);
  }
  Entry& entry(ValueId value);

  std::size_t positions_;
  std::vector<Entry> entries_;      // by value
  std::vector<Address> addresses_;  // by value and position
  std::vector<ValueId> unfinished_;
};

}  // namespace shardwise
