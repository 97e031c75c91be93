#include "shardwise/loader/detail/engine/stage_clock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shardwise/loader/loader_stats.h"

namespace shardwise::detail {
namespace {

using ::testing::ElementsAre;

// Until the clock has moved: no test can tell less.
void spend_time() {
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() == start) continue;
}

std::vector<std::string> stages_of(const StageClock& clock) {
  std::vector<std::string> stages;
  for (const StageClock::Total& total : clock.totals()) stages.emplace_back(total.stage);
  return stages;
}

TEST(StageClock, CountsNestedStagesApart) {
  StageClock clock;
  {
    const RunningClock running(&clock);
    const StageTimer outer("outer");
    spend_time();
    for (int i = 0; i < 3; ++i) {
      const StageTimer inner("inner");
      const StageTimer again("outer");
      spend_time();
    }
    const StageTimer last(std::string("in") == "in" ? "inner" : "");
    spend_time();
  }
  EXPECT_THAT(stages_of(clock), ElementsAre("outer", "inner"));
  for (const StageClock::Total& total : clock.totals()) EXPECT_GT(total.nanoseconds, 0);
  EXPECT_EQ(StageClock::current, nullptr);
}

TEST(StageClock, CostsNothingWhereNoneRuns) {
  const StageTimer timer("nobody");
  EXPECT_EQ(StageClock::current, nullptr);
  StageClock clock;
  {
    const RunningClock none(nullptr);
    const StageTimer timer_of_none("nobody");
  }
  EXPECT_TRUE(clock.totals().empty());
}

TEST(StageClock, HoldsOutWhereStagesAreTooManyOrTooDeep) {
  StageClock clock;
  const RunningClock running(&clock);
  std::vector<std::string> names;
  names.reserve(100);
  for (int i = 0; i < 100; ++i) names.push_back("stage " + std::to_string(i));
  for (const std::string& name : names) const StageTimer timer(name.c_str());
  EXPECT_EQ(clock.totals().size(), 32u);
  for (const std::string& name : names) clock.enter(name.c_str());
  for (std::size_t i = 0; i < names.size(); ++i) clock.leave();
  EXPECT_EQ(clock.totals().size(), 32u);
}

TEST(Bottleneck, NamesTheSideThatIsWaitedFor) {
  LoaderStats stats;
  stats.seconds = 40;
  stats.consumer_waited_seconds = 12.3;
  stats.readers_waited_seconds = 2;
  stats.threads = 2;
  stats.stages = {{"decode", 71}, {"read", 20}, {"place", 9}};
  EXPECT_EQ(bottleneck(stats),
            "the readers: decode takes 71 % of their time; the job waited 12.3 s of 40.0 s");
  stats.stages.clear();
  EXPECT_EQ(bottleneck(stats), "the readers: the job waited 12.3 s of 40.0 s");
  stats.consumer_waited_seconds = 0.5;
  stats.readers_waited_seconds = 60;
  EXPECT_EQ(
      bottleneck(stats),
      "the job: the readers waited 30.0 s of 40.0 s for room; the job waited 0.5 s of 40.0 s");
  stats = LoaderStats();
  stats.seconds = 0.04;
  stats.consumer_waited_seconds = 0.0012;
  EXPECT_EQ(bottleneck(stats), "the readers: the job waited 1.2 ms of 40.0 ms");
}

}  // namespace
}  // namespace shardwise::detail
