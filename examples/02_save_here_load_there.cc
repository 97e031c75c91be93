// Saves a tensor that is cut over 4 x 2 devices, and loads it on 3, cut otherwise.
#include <iostream>
#include <numeric>

#include "shardwise/checkpoint/manager.h"

using namespace shardwise;

int main() {
  Devices devices(8);
  std::vector<float> values(12 * 10);
  std::iota(values.begin(), values.end(), 0.0f);

  const Sharding by_both(Mesh::parse("data=4,model=2"), PartitionSpec::parse("data,model"));
  const auto w = ShardedArray::from_host(devices, {DType::f32, {12, 10}, by_both},
                                         std::as_bytes(std::span(values)));
  CheckpointManager manager("checkpoints");
  manager.save(100, {tensor_source("w", w)});

  const CheckpointReader reader(manager.latest()->step.directory);
  const Sharding by_columns(Mesh::parse("model=3"), PartitionSpec::parse("-,model"));
  const auto loaded = reader.restore(devices, "w", by_columns);
  for (std::int64_t position = 0; position < 3; ++position) {
    std::cout << "device " << position << " has " << to_string(loaded.shard(position).box) << '\n';
  }
  std::cout << (loaded.to_host() == w.to_host() ? "same values\n" : "different values\n");
}
