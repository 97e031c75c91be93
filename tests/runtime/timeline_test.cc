#include "shardwise/runtime/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>
#include <vector>

#include "shardwise/runtime/manual.h"
#include "shardwise/runtime/ops/elementwise_functions.h"
#include "shardwise/runtime/tracer.h"
#include "shardwise/shard/partition_spec.h"

namespace shardwise {
namespace {

using Kind = TimelineEvent::Kind;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr std::int64_t kMs = 1'000'000;

void add(Timeline& timeline, Kind kind, std::int64_t begin_ms, std::int64_t end_ms,
         std::int64_t batch = -1) {
  timeline.add({.kind = kind,
                .name = std::string(name(kind)),
                .begin_ns = begin_ms * kMs,
                .end_ns = end_ms * kMs,
                .batch = batch});
}

TEST(Timeline, KeepsTheFirstEvents) {
  Timeline timeline(2);
  for (int i = 0; i < 5; ++i) add(timeline, Kind::read, i, i + 1);
  EXPECT_EQ(timeline.events().size(), 2u);
  EXPECT_EQ(timeline.events()[1].begin_ns, kMs);
  EXPECT_EQ(timeline.dropped(), 3);
}

TEST(Timeline, NumbersThreads) {
  Timeline timeline;
  add(timeline, Kind::wait, 0, 1);
  std::jthread([&] { add(timeline, Kind::read, 0, 1); }).join();
  add(timeline, Kind::wait, 1, 2);
  std::vector<int> threads;
  for (const TimelineEvent& event : timeline.events()) threads.push_back(event.thread);
  EXPECT_THAT(threads, ElementsAre(0, 1, 0));
}

TEST(Timeline, AScopeIsAnEventWhateverEndsIt) {
  Timeline timeline;
  try {
    const TimelineScope scope(&timeline, Kind::compute, "dot", 3);
    throw 1;
  } catch (int) {
  }
  { const TimelineScope nothing(nullptr, Kind::compute, "dot", 3); }
  ASSERT_EQ(timeline.events().size(), 1u);
  const TimelineEvent event = timeline.events()[0];
  EXPECT_EQ(event.name, "dot");
  EXPECT_EQ(event.device, 3);
  EXPECT_LE(0, event.begin_ns);
  EXPECT_LE(event.begin_ns, event.end_ns);
  EXPECT_LE(event.end_ns, timeline.now_ns());
}

TEST(Timeline, IsJsonThatOthersRead) {
  Timeline timeline;
  timeline.add({.kind = Kind::compute,
                .name = "a \"name\" \\ of\nall",
                .begin_ns = 1'002'003,
                .end_ns = 5'000'000,
                .device = 2});
  timeline.add(
      {.kind = Kind::wait, .name = "wait", .begin_ns = 5, .end_ns = 6, .device = 1, .batch = 7});
  const auto json = nlohmann::json::parse(to_trace_json(timeline));
  const auto& events = json.at("traceEvents");
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].at("args").at("name"), "job 0");
  EXPECT_EQ(events[1].at("name"), "a \"name\" \\ of\nall");
  EXPECT_DOUBLE_EQ(events[1].at("ts").get<double>(), 1002.003);
  EXPECT_DOUBLE_EQ(events[1].at("dur").get<double>(), 3997.997);
  EXPECT_EQ(events[1].at("args"), (nlohmann::json{{"device", 2}}));
  EXPECT_EQ(events[2].at("args"), (nlohmann::json{{"device", 1}, {"batch", 7}}));
  EXPECT_EQ(events[2].at("cat"), "wait");
  EXPECT_THAT(nlohmann::json::parse(to_trace_json(Timeline())).at("traceEvents"), IsEmpty());
}

TEST(StepTimes, ShareOutAStep) {
  Timeline timeline;
  add(timeline, Kind::wait, 0, 10, 0);
  // From 10 to 110: 5 ms are compiled; in 20 to 60 and 50 to 80 devices compute, in 70 to 90 they
  // exchange, so they are at work for 70; then the job waits for 20.
  add(timeline, Kind::compile, 12, 17);
  add(timeline, Kind::compute, 50, 80);
  add(timeline, Kind::compute, 20, 60);
  add(timeline, Kind::collective, 70, 90);
  add(timeline, Kind::read, 0, 110, 1);
  add(timeline, Kind::wait, 90, 110, 1);
  add(timeline, Kind::compute, 100, 200);  // of the next step, or of nobody's
  const std::vector<StepTimes> steps = step_times(timeline);
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0].batch, 0);
  EXPECT_DOUBLE_EQ(steps[0].seconds, 0.1);
  EXPECT_DOUBLE_EQ(steps[0].waited_seconds, 0.02);
  EXPECT_DOUBLE_EQ(steps[0].compiled_seconds, 0.005);
  EXPECT_NEAR(steps[0].computed_seconds, 0.07 * 70 / 90, 1e-12);
  EXPECT_NEAR(steps[0].exchanged_seconds, 0.07 * 20 / 90, 1e-12);
  EXPECT_NEAR(steps[0].other_seconds, 0.005, 1e-12);
  EXPECT_EQ(steps[0].bound(), "compute");
}

TEST(StepTimes, NameWhatEachStepIsBoundBy) {
  Timeline timeline;
  add(timeline, Kind::wait, 0, 1, 0);
  add(timeline, Kind::wait, 2, 10, 1);  // 1 to 10: the loader
  add(timeline, Kind::collective, 10, 19);
  add(timeline, Kind::wait, 19, 20, 2);  // 10 to 20
  add(timeline, Kind::wait, 29, 30, 3);  // 20 to 30: nothing of all this
  add(timeline, Kind::compile, 30, 39);
  add(timeline, Kind::wait, 39, 40, 4);
  std::vector<std::string_view> bounds;
  const std::vector<StepTimes> steps = step_times(timeline);
  for (const StepTimes& step : steps) bounds.push_back(step.bound());
  EXPECT_THAT(bounds, ElementsAre("loader", "collective", "job", "compile"));
  EXPECT_EQ(to_string(steps),
            "4 steps of 9.8 ms: loader 28 %, job 26 %, collective 23 %, compile 23 %; bound: 1 by "
            "loader, 1 by job, 1 by collective, 1 by compile");
  EXPECT_EQ(to_string(step_times(Timeline())), "0 steps");
}

TEST(Timeline, HasATaskForEachDeviceOfEachStep) {
  const auto timeline = std::make_shared<Timeline>();
  Devices devices(4, {.threads = 2, .timeline = timeline});
  const Mesh mesh = Mesh::parse("data=4");
  const auto by_rows = Sharding(mesh, PartitionSpec::parse("data,-"));
  const std::vector<float> values(32, 1);
  const auto x = ShardedArray::from_host(devices, {DType::f32, {8, 4}, by_rows},
                                         std::as_bytes(std::span(values)));
  ManualRegion region(devices, mesh);
  const auto input = region.input(x);
  const auto same = region.map("same", {input}, {{DType::f32, {8, 4}, by_rows.spec()}},
                               [](const LocalContext& context) {
                                 std::copy_n(context.inputs[0].data, 32, context.outputs[0].data);
                               })[0];
  region.all_gather(same, "data", 0);
  region.run();
  std::set<DeviceId> computed, exchanged;
  for (const TimelineEvent& event : timeline->events()) {
    EXPECT_LE(event.begin_ns, event.end_ns);
    if (event.kind == Kind::compute && event.name == "same") computed.insert(event.device);
    if (event.kind == Kind::collective) exchanged.insert(event.device);
  }
  EXPECT_THAT(computed, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(exchanged, ElementsAre(0, 1, 2, 3));
}

TEST(Timeline, HasTheCompilingOfTracedSteps) {
  const auto timeline = std::make_shared<Timeline>();
  Devices devices(2, {.timeline = timeline});
  Tracer tracer(devices, {.mesh = Mesh::parse("data=2")});
  const std::vector<float> values(8, 1);
  const Tensor x = tracer.tensor({DType::f32, {8}}, std::as_bytes(std::span(values)), "x");
  const Tensor y = x + x;
  tracer.mark_step();
  const std::vector<TimelineEvent> events = timeline->events();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events.front().kind, Kind::compile);
  EXPECT_TRUE(std::ranges::any_of(
      events, [](const TimelineEvent& event) { return event.kind == Kind::compute; }));
}

}  // namespace
}  // namespace shardwise
