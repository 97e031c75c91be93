#include "shardwise/runtime/program/detail/storage.h"

#include <utility>

namespace shardwise {

Storage::Entry& Storage::entry(ValueId value) {
  const std::size_t needed = static_cast<std::size_t>(value) + 1;
  if (entries_.size() < needed) {
    entries_.resize(needed);
    addresses_.resize(needed * positions_);
  }
  return entries_[needed - 1];
}

void Storage::bind(ValueId value, ShardedArray array) {
  Entry& bound = entry(value);
  for (std::int64_t position = 0; position < static_cast<std::int64_t>(positions_); ++position) {
    const std::shared_ptr<const Buffer> shard = array.buffer(position);
    addresses_[index(value, position)] = {shard ? shard->data() : nullptr, nullptr, nullptr};
  }
  bound = {{}, std::move(array)};
}

void Storage::bind(ValueId value, std::vector<std::shared_ptr<Buffer>> shards) {
  Entry& bound = entry(value);
  for (std::int64_t position = 0; position < static_cast<std::int64_t>(positions_); ++position) {
    const std::shared_ptr<Buffer>& shard = shards[static_cast<std::size_t>(position)];
    std::byte* const data = shard ? shard->data() : nullptr;
    addresses_[index(value, position)] = {data, data, nullptr};
  }
  bound = {std::move(shards), std::nullopt};
  unfinished_.push_back(value);
}

void Storage::bind(ValueId value, std::int64_t position, std::byte* data) {
  entry(value);
  addresses_[index(value, position)] = {data, data, nullptr};
}

void Storage::bind(ValueId value, std::int64_t position, const std::byte* data) {
  entry(value);
  addresses_[index(value, position)] = {data, nullptr, nullptr};
}

void Storage::watch(ValueId value, std::atomic<bool>& begun) {
  entry(value);
  for (std::size_t i = 0; i < positions_; ++i) {
    addresses_[index(value, static_cast<std::int64_t>(i))].begun = &begun;
  }
}

void Storage::finish(const Program& program, const Devices& devices) {
  for (const ValueId value : std::exchange(unfinished_, {})) {
    Entry& filled = entry(value);
    filled.array = ShardedArray::from_shards(devices, program.value(value).spec(),
                                             std::exchange(filled.shards, {}));
    for (std::size_t i = 0; i < positions_; ++i) {
      addresses_[index(value, static_cast<std::int64_t>(i))].write = nullptr;
    }
  }
}

}  // namespace shardwise
