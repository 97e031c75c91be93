#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "shardwise/shard/notation/xla_sharding.h"
#include "shardwise/shard/sharding.h"

// Counts what this program takes from the heap. Not inline: g++ would take free() for a mismatch.
static std::atomic<long> g_allocations = 0;

[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  ++g_allocations;
  return std::malloc(bytes);
}
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace shardwise {
namespace {

TEST(Sharding, AnswersForOneDeviceWithoutAllocating) {
  for (const char* mesh : {"a=2,b=3,c=2", "a=2,b=3,c=2@3,1,4,15,9,2,6,5,35,8,97,0"}) {
    const Sharding sharding(Mesh::parse(mesh), PartitionSpec::parse("a+c,-"));
    const Shape shape{10, 7};
    const DeviceId device = sharding.mesh().device_at(7);
    const long before = g_allocations;
    const std::int64_t position = *sharding.mesh().position_of(device);
    const bool right =
        sharding.box(device, shape).begin(0) == 9 && sharding.shard_shape(shape)[0] == 3 &&
        sharding.tile_index(position, 0) == 3 && sharding.replica_id(position) == 0 &&
        xla_replica_id(sharding, position) < sharding.num_replicas() &&
        sharding == Sharding(sharding);
    EXPECT_EQ(g_allocations, before);
    EXPECT_TRUE(right);
  }
}

}  // namespace
}  // namespace shardwise
