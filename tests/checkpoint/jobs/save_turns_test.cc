#include "shardwise/jobs/detail/save_turns.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "testing/errors.h"

namespace shardwise {
namespace {

using jobs_detail::EarlierSaveFailed;
using jobs_detail::SaveTurns;
using jobs_detail::Saving;
using Errors = SaveTurns::Errors;
using Turn = SaveTurns::Turn;

const GroupRendezvous kAlone({}, "");

void wait(Saving& saving) {
  const MutexLock lock(saving.mutex);
  saving.wait_until_done();
}

std::shared_ptr<Saving> ended(const std::string& error = "", bool is_seen = false) {
  auto saving = std::make_shared<Saving>();
  saving->end(error.empty() ? nullptr : std::make_exception_ptr(Error(ErrorCode::io, error)));
  const MutexLock lock(saving->mutex);
  saving->error_seen = is_seen;
  return saving;
}

TEST(SaveTurns, AnErrorThatSomebodyHasSeenIsThrownOnlyIfAllAre) {
  for (const auto errors : {Errors::unseen, Errors::all}) {
    for (const bool is_seen : {false, true}) {
      const bool is_thrown = !is_seen || errors == Errors::all;
      SaveTurns finished(WhenBusy::wait, errors, wait), next(WhenBusy::skip, errors, wait);
      for (SaveTurns* const turns : {&finished, &next}) turns->add(ended("no room", is_seen));
      if (is_thrown) {
        EXPECT_EQ(message_of(ErrorCode::io, [&] { finished.finish(); }), "no room");
        EXPECT_THROW(next.next(kAlone), EarlierSaveFailed);
      }
      finished.finish();
      EXPECT_EQ(next.next(kAlone), Turn::now);
    }
  }
}

TEST(SaveTurns, ErrorsComeOneAtATime) {
  SaveTurns turns(WhenBusy::replace, Errors::unseen, wait);
  for (const char* const error : {"first", "second"}) turns.add(ended(error));
  EXPECT_EQ(message_of(ErrorCode::io, [&] { turns.finish(); }), "first");
  EXPECT_EQ(message_of(ErrorCode::io, [&] { turns.finish(); }), "second");
  turns.finish();
}

TEST(SaveTurns, ASaveStaysIfTheWaitForItIsEnded) {
  bool is_ended = true;
  SaveTurns turns(WhenBusy::wait, Errors::unseen, [&](Saving& saving) {
    if (is_ended) throw std::runtime_error("interrupted");
    wait(saving);
  });
  const auto saving = ended();
  turns.add(saving);
  EXPECT_THROW(turns.finish(), std::runtime_error);
  EXPECT_TRUE(turns.has(*saving));
  is_ended = false;
  turns.finish();
  EXPECT_FALSE(turns.has(*saving));
}

TEST(SaveTurns, AHandlerThatTakesTheTurnDuringAWaitLeavesNothingToTake) {
  SaveTurns* inner = nullptr;
  SaveTurns turns(WhenBusy::replace, Errors::unseen, [&](Saving& saving) {
    if (SaveTurns* const again = std::exchange(inner, nullptr)) {
      EXPECT_EQ(message_of(ErrorCode::io, [&] { again->finish(); }), "broken");
    }
    wait(saving);
  });
  turns.add(ended("broken"));
  inner = &turns;
  turns.finish();
  EXPECT_EQ(turns.current(), nullptr);
}

TEST(SaveTurns, ASaveThatWaitsBeginsUnlessItIsReplaced) {
  for (const bool is_replaced : {false, true}) {
    Saving before;
    {
      const MutexLock lock(before.mutex);
      before.next_is_replaced = is_replaced;
    }
    if (!is_replaced) before.end(nullptr);
    EXPECT_EQ(SaveTurns::may_begin(&before, kAlone), !is_replaced);
  }
}

}  // namespace
}  // namespace shardwise
