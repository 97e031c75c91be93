#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "loader/pattern_source.h"
#include "shardwise/loader/host_loader.h"
#include "shardwise/loader/loader.h"
#include "shardwise/loader/loader_stats.h"
#include "shardwise/shard/error.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using Kind = TimelineEvent::Kind;
using ::testing::HasSubstr;

constexpr std::int64_t kMs = 1'000'000;

void add(Timeline& timeline, Kind kind, std::int64_t begin_ms, std::int64_t end_ms,
         std::int64_t batch) {
  timeline.add({.kind = kind,
                .name = std::string(name(kind)),
                .begin_ns = begin_ms * kMs,
                .end_ns = end_ms * kMs,
                .batch = batch});
}

// One thread reads two parts of 10 ms for each of 3 batches, 2 ahead; a step of the job takes 5.
void record_slow_reads(Timeline& timeline) {
  for (std::int64_t b = 0; b < 3; ++b) {
    add(timeline, Kind::read, 20 * b, 20 * b + 10, b);
    add(timeline, Kind::read, 20 * b + 10, 20 * b + 20, b);
    add(timeline, Kind::wait, b == 0 ? 0 : 20 * b + 5, 20 * b + 20, b);
  }
}

TEST(Replay, GivesWhatWasRecorded) {
  Timeline timeline;
  record_slow_reads(timeline);
  EXPECT_DOUBLE_EQ(replay_seconds(timeline, {.threads = 1, .prefetch = 2}), 0.060);
}

TEST(Replay, ReadsPartsAtTheSameTime) {
  Timeline timeline;
  record_slow_reads(timeline);
  EXPECT_DOUBLE_EQ(replay_seconds(timeline, {.threads = 2, .prefetch = 2}), 0.030);
  // Batch 2 begins when batch 0 is taken, at 10: by then 0 and 1 are there.
  EXPECT_DOUBLE_EQ(replay_seconds(timeline, {.threads = 4, .prefetch = 2}), 0.020);
  EXPECT_DOUBLE_EQ(replay_seconds(timeline, {.threads = 6, .prefetch = 3}), 0.020);
  EXPECT_EQ(what_if(timeline, {.threads = 1, .prefetch = 2}, /*cores=*/3),
            "2 more threads: 140 % faster; 2 more batches ahead: 0 % faster");
  EXPECT_EQ(
      what_if(timeline, {.threads = 1, .prefetch = 2}, /*cores=*/2),
      "more threads: faster only if they wait for files, as there are 2 cores; 2 more batches "
      "ahead: 0 % faster");
}

TEST(Replay, OfAJobThatIsSlowerGainsNothing) {
  Timeline timeline;
  for (std::int64_t b = 0; b < 3; ++b) {
    add(timeline, Kind::read, b == 0 ? 0 : 10 + 50 * (b - 1), b == 0 ? 10 : 20 + 50 * (b - 1), b);
    add(timeline, Kind::wait, b == 0 ? 0 : 10 + 50 * b, 10 + 50 * b, b);
  }
  EXPECT_DOUBLE_EQ(replay_seconds(timeline, {.threads = 1, .prefetch = 1}), 0.110);
  EXPECT_DOUBLE_EQ(replay_seconds(timeline, {.threads = 8, .prefetch = 8}), 0.110);
}

TEST(Replay, RefusesWhatIsNoWholeRun) {
  const auto refused = [](const Timeline& timeline, const ReplayOptions& options) {
    return message_of(ErrorCode::invalid_argument, [&] { replay_seconds(timeline, options); });
  };
  Timeline timeline;
  EXPECT_THAT(refused(timeline, {1, 1}), HasSubstr("the timeline has no batch"));
  record_slow_reads(timeline);
  EXPECT_THAT(refused(timeline, {0, 1}), HasSubstr("0 threads and 1 batches ahead"));
  EXPECT_THAT(refused(timeline, {1, 0}), HasSubstr("1 threads and 0 batches ahead"));
  add(timeline, Kind::wait, 80, 90, 0);
  EXPECT_THAT(refused(timeline, {1, 1}),
              HasSubstr("batch 0 comes after batch 2, needed is one run"));
  Timeline small(1);
  record_slow_reads(small);
  EXPECT_THAT(refused(small, {1, 1}), HasSubstr("has dropped 8 events"));
}

// What loaders record is a run that can be replayed, batches in order and every part of them.
TEST(Replay, TakesWhatLoadersRecord) {
  const auto source = std::make_shared<PatternSource>(
      100, std::vector<Field>{{"x", DType::f32, {300}}, {"y", DType::u8, {}}});
  const auto on_host = std::make_shared<Timeline>();
  HostLoader host(source, cut_batch(*source, Mesh::parse("data=2"), "data"),
                  {.batch_size = 10, .epochs = 2, .threads = 3}, {.seed = 1},
                  {.timeline = on_host});
  while (host.next()) {
  }
  const auto on_devices = std::make_shared<Timeline>();
  Devices devices(2, {.timeline = on_devices});
  Loader loader(devices, source, cut_batch(*source, Mesh::parse("data=2"), "data"),
                {.batch_size = 10, .epochs = 2, .threads = 3}, {.seed = 1});
  while (loader.next()) {
  }
  for (const auto& timeline : {on_host, on_devices}) {
    std::int64_t waits = 0, reads = 0;
    std::int64_t ready_ns[20] = {};
    for (const TimelineEvent& event : timeline->events()) {
      EXPECT_LE(event.begin_ns, event.end_ns);
      if (event.kind == Kind::read) {
        ++reads;
        ready_ns[event.batch] = std::max(ready_ns[event.batch], event.end_ns);
      }
      if (event.kind == Kind::wait) {
        EXPECT_EQ(event.batch, waits++);
        EXPECT_LE(ready_ns[event.batch], event.end_ns);
      }
    }
    EXPECT_EQ(waits, 20);
    EXPECT_GE(reads, 20);
    EXPECT_EQ(step_times(*timeline).size(), 19u);
    EXPECT_GT(replay_seconds(*timeline, {.threads = 1, .prefetch = 2}), 0);
  }
}

}  // namespace
}  // namespace shardwise
