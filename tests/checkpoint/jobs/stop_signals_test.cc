#include "shardwise/jobs/detail/policy/stop_signals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "testing/errors.h"

namespace shardwise {
namespace {

using jobs_detail::StopSignals;

TEST(StopSignals, AreNotedForAllThatAskAndDoNothingElse) {
  struct sigaction before = {}, after = {};
  ASSERT_EQ(::sigaction(SIGUSR1, nullptr, &before), 0);
  {
    const StopSignals first({SIGUSR1});
    EXPECT_FALSE(first.age());
    ASSERT_EQ(std::raise(SIGUSR1), 0);
    EXPECT_TRUE(first.age());
    const StopSignals later({SIGUSR1, SIGUSR2}), none({});
    EXPECT_FALSE(later.age());  // it came before this was made
    EXPECT_TRUE(none.empty());
    ASSERT_EQ(std::raise(SIGUSR2), 0);
    EXPECT_TRUE(later.age());
    EXPECT_FALSE(none.age());
  }
  ASSERT_EQ(::sigaction(SIGUSR1, nullptr, &after), 0);
  EXPECT_EQ(after.sa_handler, before.sa_handler);
}

TEST(StopSignals, RefuseWhatCannotBeHandled) {
  for (const int number : {SIGKILL, SIGSTOP, -1, 0, 1000}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { StopSignals{{number}}; }),
                testing::HasSubstr(std::to_string(number)));
  }
}

}  // namespace
}  // namespace shardwise
