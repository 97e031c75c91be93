// Devices of real processes. Every rank runs these, under mpirun.

#include <gtest/gtest.h>

#include "mpi_world.h"
#include "testing/every_collective.h"
#include "testing/same_shards.h"

namespace shardwise {
namespace {

TEST(MpiDevices, CollectivesGiveTheBitsOfOneProcess) {
  Devices alone(6, {.threads = 1}), devices(6, {.threads = 1, .group = mpi_world()});
  const std::vector<ShardedArray> expected = run_every_collective(alone);
  for (int round = 0; round < 20; ++round) {
    const std::vector<ShardedArray> found = run_every_collective(devices);
    for (std::size_t v = 0; v < found.size(); ++v) {
      EXPECT_TRUE(same_shards(found[v], expected[v])) << "value " << v;
    }
  }
}

}  // namespace
}  // namespace shardwise
