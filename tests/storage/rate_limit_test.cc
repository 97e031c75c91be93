#include "shardwise/storage/rate_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>
#include <vector>

#include "shardwise/shard/error.h"
#include "testing/errors.h"
#include "testing/fake_clock.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

constexpr std::int64_t kRate = 1 << 20;

// No real time passes.
TEST(RateLimiter, AdmitsNoMoreThanTheRateAndOneRequest) {
  const auto clock = std::make_shared<FakeClock>();
  clock->wait_until(std::chrono::seconds(7));
  RateLimiter limiter(kRate, clock);
  std::uint64_t total = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(i % 7) * 10'000;
    limiter.admit(bytes);
    const double since = clock->seconds() - 7;
    EXPECT_LE(static_cast<double>(total), since * kRate + 1);
    EXPECT_NEAR(static_cast<double>(total), since * kRate, 2) << "nor less";
    total += bytes;
  }
}

TEST(RateLimiter, ThreadsShareTheRate) {
  const auto clock = std::make_shared<FakeClock>();
  RateLimiter limiter(kRate, clock);
  constexpr std::uint64_t kEach = 250, kBytes = 5000;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&] {
        for (std::uint64_t i = 0; i < kEach; ++i) limiter.admit(kBytes);
      });
    }
  }
  EXPECT_NEAR(clock->seconds(), static_cast<double>((4 * kEach - 1) * kBytes) / kRate, 1e-4);
}

// Idle time is not saved up.
TEST(RateLimiter, ABurstAfterAPauseIsLimitedToo) {
  const auto clock = std::make_shared<FakeClock>();
  RateLimiter limiter(kRate, clock);
  limiter.admit(1);
  clock->wait_until(std::chrono::seconds(100));
  for (int i = 0; i < 5; ++i) limiter.admit(kRate);
  EXPECT_NEAR(clock->seconds(), 104, 1e-4);
}

TEST(RateLimiter, RefusesARateOfNothing) {
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [] { RateLimiter(0, std::make_shared<FakeClock>()); }),
              testing::HasSubstr("found 0 bytes a second, needed 1 or more"));
}

TEST(RateLimitedFileSystem, WritesOfEveryKindCountAndReadsDoNot) {
  const TempDir dir;
  const auto clock = std::make_shared<FakeClock>();
  const auto files = rate_limited(posix_file_system(), std::make_shared<RateLimiter>(1000, clock));
  const std::array<std::byte, 500> bytes{};
  const auto file = files->create(dir / "a", Caching::cached);
  file->write_at(0, bytes.data(), bytes.size());
  const WriteRun runs[] = {{bytes.data(), 200}, {bytes.data(), 300}};
  file->write_runs(500, runs);
  EXPECT_NEAR(clock->seconds(), 0.5, 1e-6);  // the last write has still to have its time
  file->sync();
  file->close();
  const auto opened = files->open_directory(dir.path())->open("a");
  EXPECT_EQ(opened->size(), 1000u);
  std::array<std::byte, 1000> read;
  opened->read_at(0, read.data(), read.size());
  EXPECT_NEAR(clock->seconds(), 0.5, 1e-6);
}

}  // namespace
}  // namespace shardwise
