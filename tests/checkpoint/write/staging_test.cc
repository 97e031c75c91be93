#include "shardwise/checkpoint/detail/write/staging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "testing/errors.h"

namespace shardwise::detail {
namespace {

TEST(Staging, SizesStayWithinTheBudget) {
  constexpr std::size_t mib = std::size_t{1} << 20;
  for (const std::size_t budget : {8 * mib, 9 * mib, 20 * mib, 64 * mib, 256 * mib, 4096 * mib}) {
    for (const int threads : {1, 2, 3, 8, 64, 256}) {
      for (const std::size_t data : {std::size_t{0}, mib / 3, 5 * mib, 100 * mib, 100'000 * mib}) {
        const StagingSizes sizes = staging_sizes(budget, threads, data);
        SCOPED_TRACE(testing::Message() << budget << " " << threads << " " << data);
        // A worker holds more than its buffers: two chunks, one shuffled, and zstd's own.
        const std::size_t workers = static_cast<std::size_t>(sizes.workers);
        EXPECT_LE(sizes.buffers * sizes.buffer_bytes + workers * 5 * kChunkBytes, budget);
        EXPECT_GE(sizes.workers, 1);
        EXPECT_LE(sizes.workers, threads);
        EXPECT_GE(sizes.buffers, std::min<std::size_t>(2, data / mib + 1));
        EXPECT_GE(sizes.buffer_bytes, kChunkBytes);
        EXPECT_LE(sizes.buffer_bytes, 8 * mib);
        EXPECT_EQ(sizes.buffer_bytes % kPageBytes, 0u);
      }
    }
  }
  EXPECT_EQ(staging_sizes(256 * mib, 2, 1024 * mib).buffer_bytes, 8 * mib);
  EXPECT_EQ(staging_sizes(256 * mib, 2, 1024 * mib).buffers, 5u);
  EXPECT_EQ(staging_sizes(256 * mib, 2, 1024 * mib).workers, 2);
}

TEST(Staging, TooSmallABudgetIsAnError) {
  const std::string message =
      message_of(ErrorCode::invalid_argument, [] { staging_sizes(kLeastBudgetBytes - 1, 1, 0); });
  EXPECT_THAT(message, testing::HasSubstr("memory_budget_bytes is 8388607, at least 8388608"));
}

TEST(Staging, BuffersAreAlignedAndApart) {
  StagingPool pool({.workers = 1, .buffer_bytes = 8192, .buffers = 3});
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(pool.buffer(i)) % kPageBytes, 0u);
    EXPECT_EQ(pool.buffer(i), pool.buffer(0) + i * 8192);
  }
}

}  // namespace
}  // namespace shardwise::detail
