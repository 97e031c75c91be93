#include "shardwise/loader/detail/engine/ring.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "loader/pattern_source.h"
#include "testing/errors.h"

namespace shardwise::detail {
namespace {

using ::testing::ElementsAre;

PendingBatch empty_batch(std::int64_t index) { return {index, 0, 0, 1, 1, {}, {}}; }

// For a reader that must not wait: it takes what there is.
std::stop_token stopped() {
  std::stop_source source;
  source.request_stop();
  return source.get_token();
}

std::exception_ptr error(const char* message) {
  return std::make_exception_ptr(Error(ErrorCode::io, message));
}

std::string pop_fails(Ring& ring, ErrorCode code = ErrorCode::io) {
  return message_of(code, [&] { ring.pop(); });
}

TEST(Ring, HandsOutTicketsInOrderUntilItIsFull) {
  std::vector<std::int64_t> begun;
  Ring ring({.first_batch = 5, .end_batch = 100, .depth = 2, .tickets_per_batch = 2},
            [&](std::int64_t batch) {
              begun.push_back(batch);
              return empty_batch(batch);
            });
  const std::stop_token go;
  std::vector<Ring::Ticket> tickets;
  for (int i = 0; i < 4; ++i) tickets.push_back(ring.take(go).value());
  EXPECT_THAT(begun, ElementsAre(5, 6));
  EXPECT_EQ(tickets[1].batch().index, 5);
  EXPECT_EQ(tickets[1].number, 1);
  EXPECT_EQ(tickets[2].batch().index, 6);
  EXPECT_EQ(tickets[2].number, 0);
  EXPECT_FALSE(ring.take(stopped()).has_value());  // full

  for (const Ring::Ticket& ticket : tickets) ring.finish(ticket);
  EXPECT_FALSE(ring.take(stopped()).has_value());  // full, though all is read
  EXPECT_THAT(begun, ElementsAre(5, 6));
  EXPECT_EQ(ring.pop()->index, 5);
  EXPECT_EQ(ring.take(go)->batch().index, 7);
  EXPECT_EQ(ring.take(go)->batch().index, 7);
  EXPECT_FALSE(ring.take(stopped()).has_value());  // full again
  EXPECT_THAT(begun, ElementsAre(5, 6, 7));
}

TEST(Ring, EndsForReadersAndConsumer) {
  Ring ring({.first_batch = 8, .end_batch = 9, .depth = 3, .tickets_per_batch = 1}, empty_batch);
  const std::stop_token go;
  ring.finish(ring.take(go).value());
  EXPECT_FALSE(ring.take(go).has_value());
  EXPECT_EQ(ring.pop()->index, 8);
  EXPECT_FALSE(ring.pop().has_value());
  EXPECT_FALSE(ring.pop().has_value());
  EXPECT_FALSE(ring.take(go).has_value());

  Ring nothing({.first_batch = 9, .end_batch = 9, .depth = 1, .tickets_per_batch = 1}, empty_batch);
  EXPECT_FALSE(nothing.take(go).has_value());
  EXPECT_FALSE(nothing.pop().has_value());
}

TEST(Ring, ThrowsTheErrorOfTheLowestTicketAfterTheBatchesBefore) {
  for (const bool low_first : {false, true}) {
    Ring ring({.first_batch = 0, .end_batch = 9, .depth = 3, .tickets_per_batch = 3}, empty_batch);
    const std::stop_token go;
    std::vector<Ring::Ticket> t;
    for (int i = 0; i < 6; ++i) t.push_back(ring.take(go).value());
    ring.fail(t[low_first ? 4 : 5], error(low_first ? "low" : "high"));
    EXPECT_FALSE(ring.take(go).has_value());  // no reader waits or begins anything any more
    ring.fail(t[low_first ? 5 : 4], error(low_first ? "high" : "low"));
    ring.finish(t[3]);
    for (int i = 0; i < 3; ++i) ring.finish(t[static_cast<std::size_t>(i)]);
    EXPECT_EQ(ring.pop()->index, 0);
    EXPECT_EQ(pop_fails(ring), "low");
    EXPECT_EQ(pop_fails(ring), "low");
    EXPECT_FALSE(ring.take(go).has_value());
  }
}

TEST(Ring, WaitsForTheTicketsTakenBeforeItThrows) {
  Ring ring({.first_batch = 0, .end_batch = 9, .depth = 1, .tickets_per_batch = 4}, empty_batch);
  const std::stop_token go;
  const Ring::Ticket low = ring.take(go).value();
  const Ring::Ticket high = ring.take(go).value();
  ring.fail(high, error("high"));
  std::jthread late([&ring, low] { ring.fail(low, error("low")); });
  EXPECT_EQ(pop_fails(ring), "low");  // whether it came before the call or during it
}

TEST(Ring, BeginsAgainWhatCouldNotBegin) {
  std::atomic<bool> full{false};
  Gate failed;
  Ring ring({.first_batch = 0, .end_batch = 2, .depth = 2, .tickets_per_batch = 1},
            [&](std::int64_t batch) {
              if (batch == 1 && full) {
                failed.open();
                throw Error(ErrorCode::resource_exhausted, "full");
              }
              return empty_batch(batch);
            });
  full = true;
  const std::jthread reader([&](const std::stop_token& stop) {
    while (auto ticket = ring.take(stop)) ring.finish(*ticket);
  });
  EXPECT_EQ(ring.pop()->index, 0);
  failed.pass();
  full = false;
  EXPECT_EQ(ring.pop()->index, 1);
  EXPECT_FALSE(ring.pop().has_value());
}

TEST(Ring, ThrowsWhereABatchCannotBeginInItsTurn) {
  bool fails = false;
  std::vector<std::int64_t> tried;
  Ring ring({.first_batch = 0, .end_batch = 9, .depth = 2, .tickets_per_batch = 1},
            [&](std::int64_t batch) {
              tried.push_back(batch);
              if (fails) throw Error(ErrorCode::resource_exhausted, "full");
              return empty_batch(batch);
            });
  const std::stop_token go;
  ring.finish(ring.take(go).value());
  fails = true;
  EXPECT_FALSE(ring.take(stopped()).has_value());
  EXPECT_THAT(tried, ElementsAre(0));  // a reader that is asked to stop begins nothing
  std::jthread reader([&](const std::stop_token& stop) {
    while (auto ticket = ring.take(stop)) ring.finish(*ticket);
  });
  EXPECT_EQ(ring.pop()->index, 0);
  EXPECT_EQ(pop_fails(ring, ErrorCode::resource_exhausted), "full");
  EXPECT_EQ(pop_fails(ring, ErrorCode::resource_exhausted), "full");
  reader.request_stop();
  reader.join();
  EXPECT_EQ(tried.back(), 1);
  EXPECT_GE(tried.size(), 2u);
}

TEST(Ring, DeliversInOrderWhoeverReads) {
  for (int readers = 1; readers <= 4; ++readers) {
    for (int depth = 1; depth <= 3; ++depth) {
      std::atomic<std::int64_t> begun{0}, popped{0};
      Ring ring({.first_batch = 0, .end_batch = 300, .depth = depth, .tickets_per_batch = 3},
                [&](std::int64_t batch) {
                  EXPECT_LE(begun++ - popped, depth);
                  return empty_batch(batch);
                });
      std::atomic<std::int64_t> finished{0};
      std::vector<std::jthread> threads;
      for (int i = 0; i < readers; ++i) {
        threads.emplace_back([&](const std::stop_token& stop) {
          while (auto ticket = ring.take(stop)) {
            ++finished;
            ring.finish(*ticket);
          }
        });
      }
      for (std::int64_t batch = 0; batch < 300; ++batch) {
        EXPECT_EQ(ring.pop()->index, batch);
        EXPECT_GE(finished, 3 * (batch + 1));
        ++popped;
      }
      EXPECT_FALSE(ring.pop().has_value());
      threads.clear();
      EXPECT_EQ(finished, 900);
      EXPECT_GE(ring.consumer_waited_seconds(), 0);
      EXPECT_GE(ring.readers_waited_seconds(), 0);
    }
  }
}

TEST(Ring, WakesReadersThatAreToStop) {
  Ring ring({.first_batch = 0, .end_batch = 1 << 30, .depth = 1, .tickets_per_batch = 1},
            empty_batch);
  std::vector<std::jthread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&](const std::stop_token& stop) {
      while (auto ticket = ring.take(stop)) ring.finish(*ticket);
    });
  }
  EXPECT_EQ(ring.pop()->index, 0);
  while (ring.readers_waited_seconds() == 0)
    EXPECT_TRUE(ring.pop().has_value());  // until one has waited
  readers.clear();  // stops and joins: readers that wait, as the ring is full, must wake
}

}  // namespace
}  // namespace shardwise::detail
