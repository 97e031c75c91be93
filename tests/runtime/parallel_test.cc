#include "shardwise/runtime/parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/tasks.h"
#include "shardwise/shard/error.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::HasSubstr;

struct Mishap {
  int number;
};

TEST(Executor, TakesItsThreadCountFromTheCaller) {
  EXPECT_EQ(Executor(3).threads(), 3);
  EXPECT_GE(Executor().threads(), 1);
  EXPECT_EQ(Executor::threads_for(3), 3);
  EXPECT_EQ(Executor::threads_for(0), Executor().threads());
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { Executor(-2); }),
              HasSubstr("-2 threads"));
  message_of(ErrorCode::invalid_argument, [] { Executor::threads_for(-1); });
}

TEST(Executor, ParallelForCallsEachIndexOnce) {
  for (const int threads : {1, 2, 4}) {
    const Executor executor(threads);
    for (const std::int64_t count : {0, 1, 2, 7, 10'000}) {
      // Plain ints: each is written by one body and read after the join.
      std::vector<int> calls(static_cast<std::size_t>(count), 0);
      executor.parallel_for(count, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
      EXPECT_EQ(calls, std::vector<int>(static_cast<std::size_t>(count), 1));
    }
  }
}

TEST(Executor, ParallelForOverNothingCallsNothing) {
  Executor(2).parallel_for(-3, [](std::int64_t) { FAIL(); });
}

TEST(Executor, ParallelForRethrowsWithItsTypeAndStopsTheRest) {
  const Executor one(1);
  int calls = 0;
  try {
    one.parallel_for(1000, [&](std::int64_t) {
      ++calls;
      throw Mishap{7};
    });
    FAIL() << "did not throw";
  } catch (const Mishap& mishap) {
    EXPECT_EQ(mishap.number, 7);
  }
  EXPECT_EQ(calls, 1);
  const Executor four(4);
  EXPECT_THROW(four.parallel_for(1000,
                                 [](std::int64_t i) {
                                   if (i % 3 == 0) throw std::out_of_range(std::to_string(i));
                                 }),
               std::out_of_range);
}

TEST(Executor, WorksAgainAfterAnException) {
  const Executor executor(4);
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(executor.parallel_for(100, [](std::int64_t) { throw Mishap{1}; }), Mishap);
    std::atomic<int> calls{0};
    executor.parallel_for(100, [&](std::int64_t) { ++calls; });
    EXPECT_EQ(calls, 100);
  }
}

/// Computing that the compiler cannot drop.
void compute(int steps) {
  std::atomic<int> sum{0};
  for (int i = 0; i < steps; ++i) sum.fetch_add(i, std::memory_order_relaxed);
}

TEST(Executor, BodiesMayLoopInParallelThemselves) {
  for (const int threads : {1, 2, 4}) {
    const Executor executor(threads);
    std::vector<std::int64_t> sums(100, 0);
    executor.parallel_for(100, [&](std::int64_t i) {
      std::vector<std::int64_t> parts(64, 0);
      executor.parallel_for(64,
                            [&](std::int64_t j) { parts[static_cast<std::size_t>(j)] = i * j; });
      sums[static_cast<std::size_t>(i)] = std::accumulate(parts.begin(), parts.end(), 0L);
    });
    for (std::int64_t i = 0; i < 100; ++i) EXPECT_EQ(sums[static_cast<std::size_t>(i)], i * 2016);
  }
}

/// Runs many short tasks, and among them one whose inner work is shared with a second thread, which
/// takes long: the task must wait, and must not begin another short one until then.
void expect_waits_alone(
    const std::function<void(const Executor&, const std::function<void()>&)>& run_twice) {
  static thread_local int depth = 0;
  const Executor executor(4);
  for (int round = 0; round < 3; ++round) {
    Tasks outer;
    const auto root = outer.add([] {});
    for (int i = 0; i < 400; ++i) {
      outer.add(
          [&, i] {
            EXPECT_EQ(depth, 0);
            ++depth;
            compute(4000);
            if (i == 40) {
              std::latch both_have_begun(2);
              const auto owner = std::this_thread::get_id();
              run_twice(executor, [&] {
                both_have_begun.arrive_and_wait();
                if (std::this_thread::get_id() != owner) compute(1'000'000);
              });
            }
            --depth;
          },
          {root});
    }
    outer.run(executor);
  }
}

TEST(Executor, AWaitingLoopDoesNotBeginOuterTasks) {
  expect_waits_alone([](const Executor& executor, const std::function<void()>& body) {
    executor.parallel_for(2, [&](std::int64_t) { body(); });
  });
}

TEST(Executor, AWaitingGraphDoesNotBeginOuterTasks) {
  expect_waits_alone([](const Executor& executor, const std::function<void()>& body) {
    Tasks inner;
    inner.add(body);
    inner.add(body);
    inner.run(executor);
  });
}

TEST(Executor, AnOuterExceptionDoesNotCutAnInnerLoopShort) {
  const Executor executor(2);
  for (int round = 0; round < 20; ++round) {
    std::latch both_have_begun(2);
    const auto body = [&](std::int64_t i) {
      both_have_begun.arrive_and_wait();
      if (i == 1) throw Mishap{1};
      std::atomic<int> calls{0};
      executor.parallel_for(10'000, [&](std::int64_t) { ++calls; });
      EXPECT_EQ(calls, 10'000);
    };
    EXPECT_THROW(executor.parallel_for(2, body), Mishap);
  }
}

TEST(Executor, SeveralCallersShareTheWorkers) {
  for (const int threads : {1, 2}) {
    const Executor executor(threads);
    std::vector<std::int64_t> totals(6, 0);
    {
      std::vector<std::jthread> callers;
      for (std::size_t c = 0; c < totals.size(); ++c) {
        callers.emplace_back([&executor, &totals, c] {
          for (int round = 0; round < 20; ++round) {
            std::vector<std::int64_t> values(50, 0);
            executor.parallel_for(50,
                                  [&](std::int64_t i) { values[static_cast<std::size_t>(i)] = i; });
            totals[c] += std::accumulate(values.begin(), values.end(), 0L);
          }
        });
      }
    }
    EXPECT_EQ(totals, std::vector<std::int64_t>(6, 20 * 1225));
  }
}

TEST(TaskGraph, RefusesUnknownPredecessors) {
  TaskGraph graph;
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { graph.add({0}); }),
              HasSubstr("task 0 cannot come after task 0"));
  graph.add();
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { graph.add({-1}); }),
              HasSubstr("after task -1"));
  EXPECT_EQ(graph.size(), 1);
}

TEST(TaskGraph, AnEmptyGraphRuns) {
  Executor(2).run(TaskGraph(), [](TaskGraph::TaskId) { FAIL(); });
}

// Each task adds what its predecessors left in plain memory, so that a missing order shows as a
// wrong number, and under ThreadSanitizer as a race.
TEST(TaskGraph, RandomGraphsRunEachTaskOnceAfterItsPredecessors) {
  std::mt19937 random(1);
  for (const int threads : {1, 2, 4}) {
    const Executor executor(threads);
    for (int round = 0; round < 60; ++round) {
      const std::size_t count = 1 + random() % 120;
      std::vector<std::uint64_t> found(count, 0), expected(count, 0);
      Tasks graph;
      for (std::size_t i = 0; i < count; ++i) {
        std::vector<TaskGraph::TaskId> after;
        for (std::size_t n = i == 0 ? 0 : random() % 4; n > 0; --n) {
          after.push_back(static_cast<TaskGraph::TaskId>(random() % i));  // now and then one twice
        }
        const auto value = [i, after](const std::vector<std::uint64_t>& values) {
          std::uint64_t sum = i + 1;
          for (const auto p : after) sum = sum * 3 + values[static_cast<std::size_t>(p)];
          return sum;
        };
        expected[i] = value(expected);
        graph.add([&found, i, value] { found[i] += value(found); }, after);
      }
      graph.run(executor);
      EXPECT_EQ(found, expected);
    }
  }
}

TEST(TaskGraph, LongChainsDoNotUseTheStack) {
  for (const int threads : {1, 2}) {
    Tasks graph;
    std::int64_t length = 0;
    TaskGraph::TaskId last = graph.add([&] { ++length; });
    for (int i = 1; i < 300'000; ++i) last = graph.add([&] { ++length; }, {last});
    graph.run(Executor(threads));
    EXPECT_EQ(length, 300'000);
  }
}

TEST(TaskGraph, AFanOutAndInRunsOnOneWorker) {
  Tasks graph;
  std::atomic<int> ran{0};
  const auto first = graph.add([&] { ++ran; });
  std::vector<TaskGraph::TaskId> middle;
  for (int i = 0; i < 5000; ++i) middle.push_back(graph.add([&] { ++ran; }, {first}));
  graph.add([&] { EXPECT_EQ(ran.exchange(-1), 5001); }, middle);
  graph.run(Executor(1));
  EXPECT_EQ(ran, -1);
}

TEST(TaskGraph, AnExceptionStopsWhatComesAfterAndKeepsItsType) {
  for (const int threads : {1, 4}) {
    const Executor executor(threads);
    for (int round = 0; round < 20; ++round) {
      Tasks graph;
      std::atomic<bool> follower_ran{false};
      std::vector<TaskGraph::TaskId> before;
      for (int i = 0; i < 20; ++i) {
        before.push_back(graph.add([i] {
          if (i == 11) throw Mishap{11};
        }));
      }
      graph.add([&] { follower_ran = true; }, before);
      try {
        graph.run(executor);
        FAIL() << "did not throw";
      } catch (const Mishap& mishap) {
        EXPECT_EQ(mishap.number, 11);
      }
      EXPECT_FALSE(follower_ran);
    }
  }
}

TEST(TaskGraph, AnExceptionStopsIndependentTasksThatHaveNotStarted) {
  Tasks graph;
  int ran = 0;
  for (int i = 0; i < 1000; ++i) {
    graph.add([&] {
      ++ran;
      throw Mishap{1};
    });
  }
  EXPECT_THROW(graph.run(Executor(1)), Mishap);
  EXPECT_EQ(ran, 1);
}

// How far the chain gets is a matter of timing, but it must not always get to its end.
TEST(TaskGraph, AnExceptionElsewhereStopsAChainBetweenTwoTasks) {
  const Executor executor(2);
  constexpr int kLength = 20'000;
  int stopped = 0;
  for (int round = 0; round < 200 && stopped == 0; ++round) {
    Tasks graph;
    int length = 0;
    std::latch both_have_begun(2);
    std::atomic<bool> throws{false};
    TaskGraph::TaskId last = graph.add([&] {
      both_have_begun.arrive_and_wait();
      // Not before the other one is awake: the chain takes less time than that may take.
      while (!throws) std::this_thread::yield();
    });
    for (int i = 0; i < kLength; ++i) last = graph.add([&] { ++length; }, {last});
    graph.add([&] {
      both_have_begun.arrive_and_wait();
      throws = true;
      throw Mishap{1};
    });
    EXPECT_THROW(graph.run(executor), Mishap);
    if (length < kLength) ++stopped;
  }
  EXPECT_EQ(stopped, 1);
}

// Running leaves nothing in the graph, an exception neither.
TEST(TaskGraph, RunsAgainAlsoAfterAnException) {
  TaskGraph graph;
  const auto first = graph.add();
  for (int i = 0; i < 30; ++i) graph.add({first, graph.add({first})});
  for (const int threads : {1, 4}) {
    const Executor executor(threads);
    for (int round = 0; round < 20; ++round) {
      std::vector<std::atomic<int>> ran(static_cast<std::size_t>(graph.size()));
      const auto count = [&](TaskGraph::TaskId task) { ++ran[static_cast<std::size_t>(task)]; };
      executor.run(graph, count);
      for (const auto& calls : ran) EXPECT_EQ(calls, 1);
      EXPECT_THROW(executor.run(graph,
                                [](TaskGraph::TaskId task) {
                                  if (task == 17) throw Mishap{17};
                                }),
                   Mishap);
    }
  }
}

// Two threads run one graph at the same time.
TEST(TaskGraph, SeveralCallersMayRunOneGraph) {
  TaskGraph graph;
  std::vector<TaskGraph::TaskId> last{graph.add()};
  for (int i = 0; i < 200; ++i) last.push_back(graph.add({last.back(), last[last.size() / 2]}));
  const Executor executor(2);
  std::vector<std::jthread> callers;
  for (int caller = 0; caller < 3; ++caller) {
    callers.emplace_back([&] {
      for (int round = 0; round < 20; ++round) {
        std::vector<int> order(static_cast<std::size_t>(graph.size()), -1);
        int next = 0;  // a chain: one task at a time
        executor.run(
            graph, [&](TaskGraph::TaskId task) { order[static_cast<std::size_t>(task)] = next++; });
        for (std::size_t i = 0; i < order.size(); ++i) EXPECT_EQ(order[i], static_cast<int>(i));
      }
    });
  }
}

TEST(TaskGraph, BodiesMayLoopInParallelAndRunGraphs) {
  const Executor executor(4);
  std::vector<std::int64_t> sums(40, 0);
  Tasks graph;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    graph.add([&executor, &sums, i] {
      std::vector<std::int64_t> parts(32, 0);
      executor.parallel_for(32, [&](std::int64_t j) { parts[static_cast<std::size_t>(j)] = j; });
      Tasks inner;
      const auto add =
          inner.add([&] { sums[i] = std::accumulate(parts.begin(), parts.end(), 0L); });
      inner.add([&] { sums[i] *= 2; }, {add});
      inner.run(executor);
    });
  }
  graph.run(executor);
  EXPECT_EQ(sums, std::vector<std::int64_t>(40, 992));
}

/// A random graph; some tasks are events. Each task adds up the ones before it.
struct WithEvents {
  explicit WithEvents(std::mt19937& random) {
    const std::size_t count = 1 + random() % 80;
    for (std::size_t i = 0; i < count; ++i) {
      after.emplace_back();
      if (random() % 4 == 0) {
        events.push_back(graph.add_event());
        expected.push_back(i + 1);
        continue;
      }
      expected.push_back(i + 1);
      for (std::size_t n = i == 0 ? 0 : random() % 4; n > 0; --n) {
        after[i].push_back(static_cast<TaskGraph::TaskId>(random() % i));
        expected[i] = expected[i] * 3 + expected[static_cast<std::size_t>(after[i].back())];
      }
      graph.add(after[i]);
    }
  }

  void make(TaskGraph::TaskId id, std::vector<std::uint64_t>& found) const {
    const auto i = static_cast<std::size_t>(id);
    std::uint64_t sum = i + 1;
    for (const auto before : after[i]) sum = sum * 3 + found[static_cast<std::size_t>(before)];
    found[i] += sum;
  }

  TaskGraph graph;
  std::vector<std::vector<TaskGraph::TaskId>> after;
  std::vector<TaskGraph::TaskId> events;
  std::vector<std::uint64_t> expected;
};

TEST(TaskGraph, EventsThatHappenInAnyOrderRunWhatComesAfterThem) {
  std::mt19937 random(2);
  for (const int threads : {1, 2, 4}) {
    const Executor executor(threads);
    for (int round = 0; round < 100; ++round) {
      WithEvents one(random);
      std::vector<std::uint64_t> found(one.expected.size(), 0);
      std::shuffle(one.events.begin(), one.events.end(), random);
      std::atomic<int> running = 0, asking = 0;
      executor.run(
          one.graph,
          [&](TaskGraph::TaskId id) {
            ++running;
            one.make(id, found);
            --running;
          },
          [&](bool is_idle) -> std::optional<TaskGraph::TaskId> {
            EXPECT_EQ(++asking, 1);
            EXPECT_TRUE(!is_idle || running == 0);
            std::optional<TaskGraph::TaskId> event;
            if (random() % 3 > 0 && !one.events.empty()) {
              event = one.events.back();
              one.events.pop_back();
              one.make(*event, found);
            }
            --asking;
            return event;
          });
      EXPECT_EQ(found, one.expected);
    }
  }
}

TEST(TaskGraph, WhatDoesNotNeedAnEventRunsBeforeIt) {
  for (const int threads : {1, 2}) {
    TaskGraph graph;
    const auto event = graph.add_event();
    graph.add({event});
    for (int i = 0; i < 50; ++i) graph.add();
    std::atomic<int> others = 0;
    Executor(threads).run(
        graph, [&](TaskGraph::TaskId id) { others += id == 1 ? 100 : 1; },
        [&](bool) { return others < 50 ? std::nullopt : std::optional(event); });
    EXPECT_EQ(others, 150);
  }
}

TEST(TaskGraph, AFailureWhereEventsAreAwaitedEndsTheRun) {
  for (const int threads : {1, 2}) {
    TaskGraph graph;
    graph.add({graph.add_event()});
    const auto never = [](bool) -> std::optional<TaskGraph::TaskId> { return {}; };
    EXPECT_THROW(Executor(threads).run(
                     graph, [](TaskGraph::TaskId) { FAIL(); },
                     [](bool) -> std::optional<TaskGraph::TaskId> { throw Mishap{2}; }),
                 Mishap);
    graph.add();
    EXPECT_THROW(Executor(threads).run(
                     graph, [](TaskGraph::TaskId) { throw Mishap{3}; }, never),
                 Mishap);
    EXPECT_EQ(
        message_of(ErrorCode::invalid_argument,
                   [&] { Executor(threads).run(graph, [](TaskGraph::TaskId) {}); }),
        "run a task graph of 1 events: found nothing that says when they have happened, needed "
        "next_event");
  }
}

}  // namespace
}  // namespace shardwise
