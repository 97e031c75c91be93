#include <iostream>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
namespace sw = shardwise;

int main() {
  sw::Devices devices(8);
  const std::vector<float> values(12 * 10, 0.5f);
  const sw::Sharding by_both(sw::Mesh::parse("data=4,model=2"), "data,model");
  const auto w = sw::ShardedArray::from_host(devices, {sw::DType::f32, {12, 10}, by_both}, values);
  sw::CheckpointManager manager("checkpoints");
  manager.save(100, {sw::tensor_source("w", w)}, {.existing = sw::Existing::replace});

  const sw::Sharding by_columns(sw::Mesh::parse("model=3"), "-,model");
  const sw::CheckpointReader reader(manager.latest()->step.directory);
  const auto loaded = reader.restore(devices, "w", by_columns);
  for (int i = 0; i < 3; ++i) {
    std::cout << "device " << i << " has " << sw::to_string(loaded.shard(i).box) << '\n';
  }
  std::cout << (loaded.to_host() == w.to_host() ? "same values\n" : "different values\n");
}
