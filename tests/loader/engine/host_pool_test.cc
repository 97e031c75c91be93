#include "shardwise/loader/detail/engine/host_pool.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <thread>
#include <vector>

namespace shardwise::detail {
namespace {

TEST(HostPool, GivesMemoryOutAgainOnlyOnceItIsDropped) {
  const auto pool = std::make_shared<HostPool>();
  std::shared_ptr<std::byte> first = pool->allocate(1000);
  const std::shared_ptr<std::byte> copy = first;
  const std::byte* const place = first.get();
  first.reset();
  EXPECT_NE(pool->allocate(1000).get(), place);
  EXPECT_EQ(pool->in_use_bytes(), 1000u);
}

TEST(HostPool, UsesMemoryAgain) {
  const auto pool = std::make_shared<HostPool>();
  const std::byte* const place = pool->allocate(1000).get();
  for (int i = 0; i < 10; ++i) EXPECT_EQ(pool->allocate(1000).get(), place);
  EXPECT_EQ(pool->kept_bytes(), 1000u);
}

// As many sizes as there are, no more is kept than once was in use.
TEST(HostPool, KeepsNoMoreThanWasInUse) {
  const auto pool = std::make_shared<HostPool>();
  std::mt19937 random(5);
  std::vector<std::shared_ptr<std::byte>> held(20);
  std::size_t peak = 0;
  for (int i = 0; i < 5000; ++i) {
    std::shared_ptr<std::byte>& one = held[random() % held.size()];
    one.reset();
    const std::size_t bytes = 1 + random() % 300;
    one = pool->allocate(bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(one.get()) % 64, 0u);
    std::memset(one.get(), i, bytes);
    peak = std::max(peak, pool->in_use_bytes());
    EXPECT_LE(pool->in_use_bytes() + pool->kept_bytes(), peak);
  }
  held.clear();
  EXPECT_EQ(pool->in_use_bytes(), 0u);
}

TEST(HostPool, LivesAsLongAsItsMemory) {
  std::shared_ptr<std::byte> memory;
  std::weak_ptr<HostPool> watched;
  {
    const auto pool = std::make_shared<HostPool>();
    watched = pool;
    memory = pool->allocate(100);
  }
  std::memset(memory.get(), 1, 100);
  EXPECT_FALSE(watched.expired());
  memory.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(HostPool, ServesManyThreads) {
  const auto pool = std::make_shared<HostPool>();
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([pool, t] {
      for (int i = 0; i < 2000; ++i) {
        const auto memory = pool->allocate(64);
        std::memset(memory.get(), t, 64);
        for (int at = 0; at < 64; ++at) ASSERT_EQ(memory.get()[at], std::byte(t));
      }
    });
  }
  threads.clear();
  EXPECT_EQ(pool->in_use_bytes(), 0u);
}

}  // namespace
}  // namespace shardwise::detail
