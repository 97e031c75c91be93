#include <iostream>

#include "shardwise/checkpoint/manager.h"
#include "shardwise/checkpoint/reader.h"
using namespace shardwise;

int main() {
  Devices devices(8);
  const std::vector<float> values(12 * 10, 0.5f);
  const Sharding by_both(Mesh::parse("data=4,model=2"), PartitionSpec::parse("data,model"));
  const auto w = ShardedArray::from_host(devices, {DType::f32, {12, 10}, by_both}, values);
  CheckpointManager manager("checkpoints");
  manager.save(100, {tensor_source("w", w)}, {.existing = Existing::replace});

  const Sharding by_columns(Mesh::parse("model=3"), PartitionSpec::parse("-,model"));
  const CheckpointReader reader(manager.latest()->step.directory);
  const auto loaded = reader.restore(devices, "w", by_columns);
  for (int i = 0; i < 3; ++i) {
    std::cout << "device " << i << " has " << to_string(loaded.shard(i).box) << '\n';
  }
  std::cout << (loaded.to_host() == w.to_host() ? "same values\n" : "different values\n");
}
