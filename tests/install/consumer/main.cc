#include <iostream>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/loader/loader.h"

// Links every component and, through checkpoint/, HDF5, zstd and TBB.
int main() {
  using namespace shardwise;
  Devices devices(2);
  const std::vector<std::byte> bytes(6, std::byte{7});
  Loader loader(devices, memory_source({"x", DType::u8, {}}, 6, bytes),
                {{"x", Sharding(Mesh::parse("data=2"), PartitionSpec::parse("data"))}},
                {.batch_size = 6});
  CheckpointManager manager("checkpoints");
  manager.save(1, {tensor_source("x", loader.next()->fields[0])},
               {.codec = Codec::zstd, .existing = Existing::replace});
  const CheckpointReader reader(manager.latest()->step.directory);
  const auto restored = reader.restore(devices, "x", Sharding::replicated(Mesh::parse("all=1"), 1));
  const bool same = restored.to_host() == bytes;
  std::cout << (same ? "consumer works\n" : "consumer reads other bytes\n");
  return same ? 0 : 1;
}
