#include "shardwise/checkpoint/detail/lanes/lanes.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <optional>
#include <set>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

namespace shardwise::detail {
namespace {

TEST(Lanes, RunEachJobOnceInTheOrderOfTheirNumbers) {
  for (const std::size_t lanes : {1u, 2u, 5u, 40u}) {
    SCOPED_TRACE(lanes);
    std::vector<std::atomic<int>> seen(30);
    std::vector<std::atomic<std::size_t>> last(lanes);
    std::atomic<int> disorder{0};
    run_lanes({.jobs = seen.size(), .lanes = lanes, .run = [&](std::size_t job, std::size_t lane) {
                 ++seen[job];
                 if (last[lane] > job) ++disorder;
                 last[lane] = job;
               }});
    for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], 1) << i;
    EXPECT_EQ(disorder, 0);
  }
}

TEST(Lanes, OneLaneOrOneJobIsTheCallersThread) {
  const auto caller = std::this_thread::get_id();
  const auto check = [&](std::size_t, std::size_t) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
  };
  run_lanes({.jobs = 5, .lanes = 1, .run = check});
  run_lanes({.jobs = 1, .lanes = 5, .run = check});
  run_lanes({.jobs = 0, .lanes = 5, .run = check});
}

/// While it lives, no thread can be started: there is no room for such a stack.
class NoThreads {
 public:
  NoThreads() {
    pthread_getattr_default_np(&usual_);
    pthread_attr_t huge;
    pthread_attr_init(&huge);
    pthread_attr_setstacksize(&huge, std::size_t{1} << 46);
    pthread_setattr_default_np(&huge);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&usual_);
    pthread_attr_destroy(&usual_);
  }

 private:
  pthread_attr_t usual_;
};

TEST(Lanes, GoOnWithTheThreadsThatCouldBeStarted) {
  // None of them, or those before the first job's turn.
  for (const bool none : {true, false}) {
    SCOPED_TRACE(none);
    std::optional<NoThreads> no_more;
    if (none) {
      no_more.emplace();
      EXPECT_THROW(std::jthread([] {}), std::system_error);
    }
    std::vector<std::atomic<int>> seen(300);
    std::atomic<int> reports{0};
    run_lanes({.jobs = seen.size(),
               .lanes = seen.size(),
               .run =
                   [&](std::size_t job, std::size_t) {
                     if (job == 0 && !none) no_more.emplace();
                     ++seen[job];
                   },
               .progress = [&] { ++reports; }});
    for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], 1) << i;
    EXPECT_GT(reports, 0);
  }
}

TEST(Lanes, TheFirstErrorByNumberIsThrownWhicheverCameFirst) {
  std::latch later_failed(1);
  std::atomic<std::size_t> begun{0};
  const auto run = [&](std::size_t job, std::size_t) {
    ++begun;
    if (job == 3) {
      later_failed.wait();
      throw std::runtime_error("3");
    }
    if (job == 4) {
      later_failed.count_down();
      throw std::runtime_error("4");
    }
  };
  try {
    run_lanes({.jobs = 100'000, .lanes = 2, .run = run});
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "3");
  }
  EXPECT_LT(begun, 100'000u);
}

TEST(Lanes, RunBothAtTheSameTime) {
  std::latch both(2);
  std::atomic<int> ended{0};
  const auto meet = [&] {
    both.arrive_and_wait();
    ++ended;
  };
  run_both(meet, meet);
  EXPECT_EQ(ended, 2);
  std::latch second_failed(1);
  const auto fail = [](const char* text) { throw std::runtime_error(text); };
  try {
    run_both(
        [&] {
          second_failed.wait();
          fail("first");
        },
        [&] {
          second_failed.count_down();
          fail("second");
        });
    FAIL();
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "first");
  }
}

TEST(Lanes, ComputeNoMoreAtOnceThanThereAreSlots) {
  LaneSlots slots(3);
  std::atomic<int> now{0}, most{0}, uses{0};
  run_lanes({.jobs = 20'000, .lanes = 8, .run = [&](std::size_t, std::size_t) {
               const LaneSlots::Use slot(slots);
               most = std::max(most.load(), ++now);
               ++uses;
               --now;
             }});
  EXPECT_EQ(uses, 20'000);
  EXPECT_LE(most, 3);
  const auto fail = [&] {
    const LaneSlots::Use slot(slots);
    throw std::runtime_error("x");
  };
  for (int i = 0; i < 5; ++i) EXPECT_THROW(fail(), std::runtime_error);
}

TEST(Lanes, ProgressIsTheCallersAndEndsWithTheLastJob) {
  for (const std::size_t lanes : {1u, 3u}) {
    std::atomic<int> done{0};
    int last = -1;
    const auto caller = std::this_thread::get_id();
    run_lanes({.jobs = 50,
               .lanes = lanes,
               .run = [&](std::size_t, std::size_t) { ++done; },
               .progress =
                   [&] {
                     EXPECT_EQ(std::this_thread::get_id(), caller);
                     last = done;
                   }});
    EXPECT_EQ(last, 50);
  }
}

// Each report wakes the caller's thread.
TEST(Lanes, ProgressOfVeryManyJobsIsNotReportedForEach) {
  for (const std::size_t jobs : {99u, 100u, 101u, 12'345u}) {
    std::atomic<std::size_t> done{0};
    std::size_t reports = 0, last = 0;
    run_lanes({.jobs = jobs,
               .lanes = 3,
               .run = [&](std::size_t, std::size_t) { ++done; },
               .progress =
                   [&] {
                     ++reports;
                     last = done;
                   }});
    EXPECT_GE(reports, 1u);
    EXPECT_LE(reports, std::max<std::size_t>(jobs / 64, 100) + 1);
    EXPECT_EQ(last, jobs);
  }
}

TEST(Lanes, WhatProgressThrowsEndsThem) {
  constexpr std::size_t kJobs = 1'000'000;
  for (const std::size_t lanes : {1u, 3u}) {
    std::size_t begun = kJobs;
    // On a busy machine the caller's thread may be held up as it throws, while the lanes go on.
    for (int run = 0; run < 10 && begun == kJobs; ++run) {
      std::atomic<std::size_t> count{0};
      std::latch throws(1);
      EXPECT_THROW(run_lanes({.jobs = kJobs,
                              .lanes = lanes,
                              .run =
                                  [&](std::size_t job, std::size_t) {
                                    if (job >= kJobs / 2) throws.wait();
                                    ++count;
                                  },
                              .progress =
                                  [&] {
                                    throws.count_down();
                                    throw std::runtime_error("stop");
                                  }}),
                   std::runtime_error);
      begun = count;
    }
    EXPECT_LT(begun, kJobs);
  }
}

}  // namespace
}  // namespace shardwise::detail
