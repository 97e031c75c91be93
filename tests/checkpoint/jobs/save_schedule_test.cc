#include "shardwise/jobs/detail/policy/save_schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <memory>

#include "testing/errors.h"
#include "testing/fake_clock.h"

namespace shardwise {
namespace {

using jobs_detail::SaveSchedule;

const GroupRendezvous alone({}, "");

TEST(SaveSchedule, SaysYesForMultiplesTimesAndRequests) {
  const auto clock = std::make_shared<FakeClock>();
  SaveSchedule schedule({.every = 10, .interval = std::chrono::seconds(60), .clock = clock}, "t");
  EXPECT_TRUE(schedule.should_save(20, alone));
  EXPECT_FALSE(schedule.should_save(21, alone));
  schedule.request_save();
  EXPECT_TRUE(schedule.should_save(21, alone));
  schedule.begin(21, 1);
  EXPECT_FALSE(schedule.should_save(22, alone));
  clock->wait_until(std::chrono::seconds(61));
  EXPECT_TRUE(schedule.should_save(23, alone));
  EXPECT_FALSE(schedule.reached_preemption());
  EXPECT_FALSE(schedule.time_left());
}

TEST(SaveSchedule, RefusesRulesThatAreWrong) {
  const auto refused = [](const WhenOptions& rules) {
    return message_of(ErrorCode::invalid_argument, [&] { SaveSchedule(rules, "t"); });
  };
  EXPECT_THAT(refused({.every = -1}), testing::StartsWith("t: "));
  EXPECT_THAT(refused({.interval = std::chrono::seconds(-1)}), testing::StartsWith("t: "));
  EXPECT_THAT(refused({.preemption_signals = {SIGKILL}}), testing::HasSubstr("found 9"));
}

}  // namespace
}  // namespace shardwise
