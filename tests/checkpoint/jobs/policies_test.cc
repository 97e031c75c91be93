// When a manager saves, which steps stay, and which one a restart takes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <latch>
#include <limits>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/detail/caller.h"
#include "shardwise/jobs/detail/policy/retention.h"
#include "shardwise/jobs/detail/policy/save_schedule.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/forwarding_file_system.h"
#include "testing/errors.h"
#include "testing/fake_clock.h"
#include "testing/faulty_file_system.h"
#include "testing/flip.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/host_tensor.h"
#include "testing/root_names.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using std::chrono::hours;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
namespace fs = std::filesystem;
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class SavePolicies : public testing::Test {
 protected:
  SaveStats save(CheckpointManager& manager, std::int64_t step, const Metrics& metrics = {}) const {
    return manager.save(step, {tensor_.source()}, {.metrics = metrics});
  }

  std::vector<std::int64_t> steps(const CheckpointManager& manager) const {
    std::vector<std::int64_t> steps;
    for (const Step& step : manager.steps()) steps.push_back(step.step);
    return steps;
  }

  // The bytes of its tensor, not those that say where they are.
  void damage(std::int64_t step) const {
    const fs::path file =
        CheckpointManager(dir_.path()).step(step).directory / "shards-00000-of-00001.h5";
    flip(file, 4096 + 100, std::byte{1});
  }

  void restore(const CheckpointReader& reader) const {
    std::vector<std::byte> bytes(tensor_.data->size());
    reader.read("x", Box::whole(tensor_.spec.shape), bytes);
    EXPECT_EQ(bytes, *tensor_.data);
  }

  const TempDir dir_;
  const HostTensor tensor_ = host_tensor("x", DType::f32, {100, 10}, "2", "0,-");
};

// Every step is looked at alone, by the words of ManagerOptions.
TEST(NotKept, IsWhatNoRuleKeeps) {
  std::mt19937 random(5);
  const auto draw = [&](int least, int most) {
    return std::uniform_int_distribution<int>(least, most)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::int64_t> steps;
    std::map<std::int64_t, bool> valid;
    std::map<std::int64_t, std::optional<double>> values;
    std::map<std::int64_t, std::int64_t> times;
    std::int64_t step = 0, time = 1'000'000;
    for (int i = draw(0, 12); i > 0; --i) {
      steps.push_back(step += draw(1, 3));
      times[step] = time += draw(0, 90);
      valid[step] = draw(0, 3) > 0;
      values[step] = draw(0, 4) == 0   ? std::nullopt
                     : draw(0, 6) == 0 ? std::optional(kNan)
                                       : std::optional(draw(-3, 3) / 2.0);
    }
    KeepOptions rules;
    if (draw(0, 1) == 0) rules.last = draw(1, 4);
    if (draw(0, 2) == 0) rules.every = draw(1, 5);
    if (draw(0, 2) == 0) rules.interval = seconds(draw(1, 200));
    if (draw(0, 2) == 0) {
      rules.best =
          BestSteps{.metric = "loss",
                    .order = draw(0, 1) == 0 ? BestSteps::Order::min : BestSteps::Order::max,
                    .count = draw(1, 3)};
    }
    std::set<std::int64_t> pinned;
    if (!steps.empty() && draw(0, 3) == 0) pinned.insert(steps[steps.size() / 2]);

    std::int64_t last_kept = -1'000'000;
    std::vector<std::int64_t> needed;
    const bool any_value = std::ranges::any_of(
        steps, [&](std::int64_t s) { return values[s] && *values[s] == *values[s]; });
    for (const std::int64_t s : steps) {
      bool kept = s == steps.back() || pinned.contains(s);
      const auto newer_valid = std::ranges::count_if(
          steps, [&](std::int64_t other) { return other > s && valid[other]; });
      kept = kept || (rules.last > 0 && newer_valid < rules.last);
      kept = kept || (rules.every > 0 && s % rules.every == 0);
      if (rules.interval.count() > 0 && times[s] - last_kept >= rules.interval.count()) {
        last_kept = times[s];
        kept = true;
      }
      if (rules.best) {
        const double sign = rules.best->order == BestSteps::Order::min ? 1 : -1;
        const auto better = std::ranges::count_if(steps, [&](std::int64_t other) {
          if (!values[other] || *values[other] != *values[other]) return false;
          const double own = sign * values[s].value_or(kNan), theirs = sign * *values[other];
          return theirs < own || (theirs == own && other > s);
        });
        const bool has_value = values[s] && *values[s] == *values[s];
        kept = kept || !any_value || (has_value && better < rules.best->count);
      }
      const bool no_rule =
          rules.last == 0 && rules.every == 0 && rules.interval.count() == 0 && !rules.best;
      if (!kept && !no_rule) needed.push_back(s);
    }
    const auto found = [&] {
      return jobs_detail::not_kept(steps, rules, pinned,
                                   {.is_valid = [&](std::int64_t s) { return valid[s]; },
                                    .value = [&](std::int64_t s) { return values[s]; },
                                    .time = [&](std::int64_t s) { return times[s]; }});
    };
    if (rules.best && !any_value && !steps.empty()) {
      EXPECT_THROW(found(), Error);
    } else {
      EXPECT_EQ(found(), needed) << "round " << round;
    }
  }
}

TEST_F(SavePolicies, KeepsTheBestTheMultiplesAndTheLast) {
  CheckpointManager manager(
      dir_.path(),
      {.keep = {.last = 1,
                .every = 5,
                .best = BestSteps{.metric = "loss", .order = BestSteps::Order::min, .count = 2}}});
  const std::vector<double> losses = {0.5, 0.9, kNan, -kInfinity, 0.7, 0.8, kInfinity, 0.6};
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_EQ(save(manager, static_cast<std::int64_t>(i) + 1, {{"loss", losses[i]}, {"epoch", 1}})
                  .cleanup_error,
              "");
  }
  EXPECT_THAT(steps(manager), ElementsAre(1, 4, 5, 8));
  EXPECT_EQ(best_step(manager)->step, 4);
  const CheckpointReader reader(manager.step(4).directory);
  EXPECT_THAT(reader.metrics(), testing::UnorderedElementsAre(testing::Pair("loss", -kInfinity),
                                                              testing::Pair("epoch", 1)));
}

TEST_F(SavePolicies, KeepsAllAsLongAsNoStepHasTheMetric) {
  CheckpointManager manager(dir_.path(), {.keep = {.best = BestSteps{.metric = "loss"}}});
  for (std::int64_t step = 1; step <= 3; ++step) {
    EXPECT_THAT(save(manager, step, {{"accuracy", 1}}).cleanup_error,
                HasSubstr("has the metric \"loss\", by which best keeps steps: all stay"));
  }
  EXPECT_EQ(best_step(manager), std::nullopt);
  EXPECT_THAT(steps(manager), SizeIs(3));
  save(manager, 4, {{"loss", 2}});
  EXPECT_THAT(steps(manager), ElementsAre(4));
}

TEST_F(SavePolicies, KeepsOneStepOfEachHour) {
  {
    CheckpointManager all(dir_.path());
    for (std::int64_t step = 1; step <= 4; ++step) save(all, step);
    const auto now = fs::file_time_type::clock::now();
    const int minutes_ago[] = {300, 250, 230, 1};
    for (std::int64_t step = 1; step <= 4; ++step) {
      fs::last_write_time(all.step(step).directory / "manifest.json",
                          now - std::chrono::minutes(minutes_ago[step - 1]));
    }
  }
  CheckpointManager manager(dir_.path(), {.keep = {.interval = hours(1)}});
  save(manager, 5);
  EXPECT_THAT(steps(manager), ElementsAre(1, 3, 4, 5));
}

TEST_F(SavePolicies, LeavesAStepThatHasAName) {
  CheckpointManager manager(dir_.path(), {.keep = {.last = 1}, .write = {.reuse_files = false}});
  save(manager, 1);
  manager.pins().add(1, "before-lr-drop");
  save(manager, 2);
  save(manager, 3);
  EXPECT_THAT(steps(manager), ElementsAre(1, 3));
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { manager.remove(1); }),
            "remove step 1 of " + dir_.path().string() +
                ": it is pinned as \"before-lr-drop\": unpin that first");
  EXPECT_THROW(manager.remove(1, WhenRead::keep), Error);
  EXPECT_THAT(manager.collect_garbage().removed, IsEmpty());
  manager.pins().add(3, "before-lr-drop");  // moves
  ASSERT_THAT(manager.pins().list(), SizeIs(1));
  EXPECT_EQ(manager.pins().list()[0].step, 3);
  EXPECT_TRUE(manager.remove(1, WhenRead::keep));
  EXPECT_EQ(message_of(ErrorCode::no_such_name, [&] { manager.pins().remove("other"); }),
            "unpin \"other\" in " + dir_.path().string() + ": there are before-lr-drop");
  manager.pins().remove("before-lr-drop");
  EXPECT_THAT(manager.pins().list(), IsEmpty());
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { manager.pins().add(3, "a/b"); }),
              HasSubstr("the name is \"a/b\", needed are"));
  EXPECT_THAT(message_of(ErrorCode::no_such_name, [&] { manager.pins().add(9, "x"); }),
              HasSubstr("find step 9"));
}

TEST_F(SavePolicies, AFileOfANameThatHoldsNoNumberKeepsAllSteps) {
  CheckpointManager manager(dir_.path(), {.keep = {.last = 1}});
  save(manager, 1);
  manager.pins().add(1, "good");
  flip(dir_ / ".named-good", 0, std::byte{0x40});
  EXPECT_THAT(save(manager, 2).cleanup_error, HasSubstr("needed is the number of a step"));
  EXPECT_THAT(steps(manager), ElementsAre(1, 2));
}

// Rules read metrics and names. Whatever fails, the steps that a rule keeps stay, and the failure
// is told.
TEST_F(SavePolicies, AnyOperationMayFailAndWhatIsKeptStays) {
  const ManagerOptions rules{.keep = {.last = 1, .every = 5, .best = BestSteps{.metric = "loss"}},
                             .write = {.reuse_files = false},
                             .collect_garbage = false};
  const auto run = [&](const fs::path& root, const std::shared_ptr<FaultyFileSystem>& files) {
    ManagerOptions options = rules;
    options.file_system = files;
    CheckpointManager manager(root, options);
    manager.pins().add(2, "moved");
    manager.pins().add(3, "moved");
    return manager.save(6, {tensor_.source()}, {.metrics = {{"loss", 5}}}).cleanup_error;
  };
  const auto fill = [&](const fs::path& root) {
    CheckpointManager manager(root);
    for (std::int64_t step = 1; step <= 5; ++step) {
      manager.save(step, {tensor_.source()}, {.metrics = {{"loss", step}}});
    }
  };
  fill(dir_ / "first");
  const auto counting = std::make_shared<FaultyFileSystem>(0, Fault::io);
  fs::copy(dir_ / "first", dir_ / "counted", fs::copy_options::recursive);
  EXPECT_EQ(run(dir_ / "counted", counting), "");
  const CheckpointManager counted(dir_ / "counted");
  EXPECT_THAT(steps(counted), ElementsAre(1, 3, 5, 6));
  for (std::int64_t at = 1; at <= counting->operations(); ++at) {
    SCOPED_TRACE(testing::Message() << "operation " << at << " of " << counting->operations());
    const fs::path root = dir_ / ("at" + std::to_string(at));
    fs::copy(dir_ / "first", root, fs::copy_options::recursive);
    std::string error;
    bool is_saved = false;
    try {
      error = run(root, std::make_shared<FaultyFileSystem>(at, Fault::io));
      is_saved = true;
    } catch (const Error& e) {
      error = e.what();
    }
    CheckpointManager manager(root);
    const std::vector<std::int64_t> left = steps(manager);
    if (error.empty()) {
      EXPECT_EQ(left, steps(counted));
    } else {
      EXPECT_THAT(left, testing::IsSupersetOf({1, 5}));
      if (is_saved) {
        EXPECT_THAT(left, testing::IsSupersetOf({3, 6}));
      }
      for (const NamedStep& named : manager.pins().list()) {
        EXPECT_THAT(left, testing::Contains(named.step));
      }
    }
    for (const std::int64_t step : left) restore(CheckpointReader(manager.step(step).directory));
    fs::remove_all(root);
  }
}

TEST_F(SavePolicies, OptionsThatAreWrongAreRefused) {
  const auto error = [&](const ManagerOptions& options) {
    return message_of(ErrorCode::invalid_argument,
                      [&] { CheckpointManager(dir_.path(), options); });
  };
  const std::string begin = "open checkpoint root " + dir_.path().string() + ": ";
  EXPECT_EQ(error({.keep = {.every = -1}}), begin + "keep_every is -1, needed 0 or more");
  EXPECT_EQ(error({.keep = {.best = BestSteps{}}}),
            begin + "best.metric is empty, needed is the name of a metric");
  EXPECT_EQ(error({.keep = {.best = BestSteps{.metric = "loss", .count = 0}}}),
            begin + "best.count is 0, needed 1 or more");
  EXPECT_EQ(error({.when = {.every = -2}}), begin + "save_every is -2, needed 0 or more");
  EXPECT_THAT(error({.when = {.preemption_signals = {SIGKILL}}}),
              HasSubstr("found 9, needed is a signal that can be handled"));
  CheckpointManager manager(dir_.path());
  EXPECT_THAT(
      message_of(
          ErrorCode::invalid_argument,
          [&] {
            manager.save(1, {tensor_.source()}, {.objects_json = "[1]", .metrics = {{"a", 1}}});
          }),
      HasSubstr("objects_json is a JSON array, needed with metrics is an object"));
}

TEST_F(SavePolicies, ARestartGoesBackPastDamagedBytesAndSaysSo) {
  CheckpointManager manager(dir_.path());
  EXPECT_EQ(manager.restore_latest([](const CheckpointReader&) { FAIL(); }), std::nullopt);
  for (std::int64_t step = 1; step <= 4; ++step) save(manager, step);
  damage(3);
  fs::remove(manager.step(4).directory / "manifest.json");
  std::vector<std::int64_t> tried;
  const auto found = manager.restore_latest([&](const CheckpointReader& reader) {
    tried.push_back(reader.step());
    restore(reader);
  });
  ASSERT_TRUE(found);
  EXPECT_THAT(tried, ElementsAre(3, 2));
  EXPECT_EQ(found->step.step, 2);
  ASSERT_THAT(found->rejected, SizeIs(2));
  EXPECT_EQ(found->rejected[0].directory.filename(), "step-00000004");
  EXPECT_THAT(found->rejected[1].reason, HasSubstr("tensor \"x\""));
  // The job comes to them again; others of its steps are not replaced.
  for (std::int64_t step = 3; step <= 4; ++step) {
    EXPECT_EQ(save(manager, step).directory.filename(),
              "step-0000000" + std::to_string(step) + ".g2");
  }
  message_of(ErrorCode::already_exists, [&] { save(manager, 2); });
  message_of(ErrorCode::already_exists, [&] { save(manager, 3); });  // it is whole now
}

TEST_F(SavePolicies, ARestartOfDamagedStepsAloneIsNoFreshStart) {
  CheckpointManager manager(dir_.path());
  for (std::int64_t step = 1; step <= 2; ++step) save(manager, step);
  damage(1);
  damage(2);
  const auto run = [&] {
    manager.restore_latest([&](const CheckpointReader& reader) { restore(reader); });
  };
  EXPECT_THAT(message_of(ErrorCode::corrupt, run),
              testing::AllOf(HasSubstr("none of 2 is whole"), HasSubstr("step-00000002: "),
                             HasSubstr("step-00000001: ")));
  // An error that is no damage goes to the caller at once.
  EXPECT_EQ(message_of(ErrorCode::invalid_argument,
                       [&] {
                         manager.restore_latest([](const CheckpointReader&) {
                           throw Error(ErrorCode::invalid_argument, "another model");
                         });
                       }),
            "another model");
}

TEST_F(SavePolicies, SaysWhenToSave) {
  const auto clock = std::make_shared<FakeClock>();
  CheckpointManager manager(dir_.path(),
                            {.when = {.every = 10, .interval = seconds(60), .clock = clock}});
  EXPECT_TRUE(manager.should_save(20));
  EXPECT_FALSE(manager.should_save(21));
  clock->wait_until(seconds(59));
  EXPECT_FALSE(manager.should_save(22));
  clock->wait_until(seconds(60));
  EXPECT_TRUE(manager.should_save(23));
  save(manager, 23);
  EXPECT_FALSE(manager.should_save(24));
  manager.request_save();
  EXPECT_TRUE(manager.should_save(25));
  EXPECT_FALSE(manager.should_save(26));
  EXPECT_FALSE(manager.preemption().is_reached);
  clock->wait_until(seconds(120));
  EXPECT_TRUE(manager.should_save(27));
  jobs_detail::begin_later(manager, 27);
  EXPECT_FALSE(manager.should_save(28));
}

TEST_F(SavePolicies, ASignalAsksForASaveAndDoesNothingElseMeanwhile) {
  struct sigaction ignore = {}, now = {};
  ignore.sa_handler = SIG_IGN;
  ASSERT_EQ(::sigaction(SIGUSR2, &ignore, nullptr), 0);
  {
    CheckpointManager manager(dir_.path(), {.when = {.every = 0, .preemption_signals = {SIGUSR2}}});
    EXPECT_FALSE(manager.should_save(1));
    std::raise(SIGUSR2);
    EXPECT_FALSE(manager.preemption().is_reached);  // not before all have agreed
    EXPECT_TRUE(manager.should_save(2));
    EXPECT_TRUE(manager.preemption().is_reached);
    CheckpointManager other(dir_.path(), {.when = {.every = 0, .preemption_signals = {SIGUSR2}}});
    EXPECT_FALSE(other.should_save(1));  // it came before
    std::raise(SIGUSR2);
    EXPECT_TRUE(other.should_save(2));
    CheckpointManager third(dir_.path(), {.when = {.every = 0, .preemption_signals = {SIGUSR2}}});
    for (CheckpointManager* one : {&manager, &other}) EXPECT_TRUE(one->should_save(3));
    EXPECT_FALSE(third.should_save(3));
  }
  ASSERT_EQ(::sigaction(SIGUSR2, nullptr, &now), 0);
  EXPECT_EQ(now.sa_handler, SIG_IGN);
}

TEST(SaveSchedule, RefusesASaveThatCannotEndInTime) {
  const auto clock = std::make_shared<FakeClock>();
  jobs_detail::SaveSchedule schedule(
      {.preemption_signals = {SIGUSR2}, .preemption_grace = std::chrono::hours(1), .clock = clock},
      "test");
  schedule.end(1'000'000, 100);  // 10,000 bytes a second
  schedule.begin(1, std::size_t{1} << 40);
  std::raise(SIGUSR2);
  schedule.begin(2, 1'000'000);
  EXPECT_THAT(message_of(ErrorCode::cancelled, [&] { schedule.begin(3, 1'000'000'000); }),
              HasSubstr("needed are about 100000.0 s"));

  // A small save says nothing of a large one, but of a small one.
  for (const auto& [bytes, took] :
       {std::pair(std::size_t{80}, 0.02), {2'000'000, 0.5}, {80, 5.0}}) {
    schedule.end(bytes, took);
    EXPECT_NO_THROW(schedule.begin(4, 8'000'000'000'000));
  }
  schedule.end(80, 1000);
  EXPECT_THAT(message_of(ErrorCode::cancelled, [&] { schedule.begin(4, 800); }),
              HasSubstr("needed are about 10000.0 s"));

  // The first save of a job: by its own speed.
  int calls = 0;
  const ProgressFunction watched = schedule.watch(4, [&](const Progress&) { ++calls; });
  clock->wait_until(seconds(1000));
  watched({.done_bytes = 1, .total_bytes = 1000});  // too early to say
  watched({.done_bytes = 500, .total_bytes = 1000});
  EXPECT_THAT(
      message_of(ErrorCode::cancelled, [&] { watched({.done_bytes = 100, .total_bytes = 1000}); }),
      HasSubstr("needed are about 9000.0 s"));
  watched({.done_bytes = 1000, .total_bytes = 1000});  // a finished save is not thrown away
  EXPECT_EQ(calls, 3);
}

TEST_F(SavePolicies, WhatASaveDidIsKeptBesideItsStep) {
  CheckpointManager manager(dir_.path(), {.keep = {.last = 2}});
  const auto stats_files = [&] {
    std::vector<std::string> names;
    for (const std::string& name : root_names(dir_.path())) {
      if (fs::is_regular_file(dir_ / name)) names.push_back(name);
    }
    return names;
  };
  save(manager, 1);
  save(manager, 2);
  const SaveStats stats = save(manager, 3);
  EXPECT_THAT(stats_files(), ElementsAre("stats-step-00000002.json", "stats-step-00000003.json"));
  const auto json = nlohmann::json::parse(file_text(dir_ / "stats-step-00000003.json"));
  EXPECT_EQ(json["directory"], "step-00000003");
  EXPECT_EQ(json["logical_bytes"], stats.logical_bytes);
  EXPECT_EQ(json["file_bytes"], stats.file_bytes);
  EXPECT_EQ(json["chunks"], stats.chunks);
  EXPECT_GT(json["memory_bytes"], 0);
  const double parts = json["plan_seconds"].get<double>() + json["write_seconds"].get<double>() +
                       json["publish_seconds"].get<double>();
  EXPECT_NEAR(parts, json["total_seconds"].get<double>(), 1e-6);
  EXPECT_GE(json["blocked_seconds"], json["total_seconds"]) << "save() waits for all of it";
  EXPECT_EQ(json["cleanup_error"], "");
  manager.remove(2);
  EXPECT_THAT(stats_files(), ElementsAre("stats-step-00000003.json"));
  save(manager, 4);
  EXPECT_THAT(stats_files(), ElementsAre("stats-step-00000003.json", "stats-step-00000004.json"));

  // A step that is removed by hand and saved again; and files that are no save's.
  fs::remove_all(dir_ / "step-00000004");
  write_file(dir_ / "stats-step-00000001.json", "mine");
  write_file(dir_ / "stats-step-00000005.json", "mine");
  EXPECT_EQ(save(manager, 4).cleanup_error, "");
  EXPECT_THAT(save(manager, 5).cleanup_error, HasSubstr("stats-step-00000005.json"));
  EXPECT_THAT(stats_files(), ElementsAre("stats-step-00000001.json", "stats-step-00000004.json",
                                         "stats-step-00000005.json"));
  EXPECT_EQ(file_text(dir_ / "stats-step-00000001.json"), "mine");
  EXPECT_EQ(file_text(dir_ / "stats-step-00000005.json"), "mine");

  // Killed saves leave files like these.
  write_file(dir_ / "stats-step-00000002.json", "{\"dire");
  write_file(dir_ / "stats-step-00000006.json", "");
  EXPECT_EQ(save(manager, 6).cleanup_error, "");
  EXPECT_THAT(stats_files(), ElementsAre("stats-step-00000001.json", "stats-step-00000005.json",
                                         "stats-step-00000006.json"));
}

// The caller of save_async() waits for the copies alone.
TEST_F(SavePolicies, WhatIsToldOfTheCallerIsHowLongItWaited) {
  CheckpointManager manager(dir_.path());
  const HostTensor tensor = host_tensor("w", DType::f32, {12}, "1", "-");
  std::latch may_write(1);
  const Stopwatch watch;
  const PendingSave pending = manager.save_async(
      1, {tensor.source()}, {.progress = [&](const Progress&) { may_write.wait(); }});
  const double returned = watch.seconds();
  may_write.count_down();
  pending.wait();
  const auto json = nlohmann::json::parse(file_text(dir_ / "stats-step-00000001.json"));
  EXPECT_GT(json["blocked_seconds"], 0);
  EXPECT_LE(json["blocked_seconds"], returned);
}

// Nothing is written of a save that there is no room for.
TEST_F(SavePolicies, RoomIsLookedForBeforeTheFirstByte) {
  class Full final : public ForwardingFileSystem {
   public:
    std::uint64_t free_bytes(const fs::path&) override { return 1000; }
    std::unique_ptr<File> create(const fs::path& path, Caching caching) override {
      if (path.filename().string().starts_with("shards-")) ADD_FAILURE() << path;
      return ForwardingFileSystem::create(path, caching);
    }
  };
  const TempDir root;
  for (const Codec codec : {Codec::none, Codec::zstd}) {
    CheckpointManager manager(root.path(), {.file_system = std::make_shared<Full>()});
    EXPECT_THAT(
        message_of(ErrorCode::io, [&] { manager.save(1, {tensor_.source()}, {.codec = codec}); }),
        testing::AllOf(HasSubstr("save step 1: write shard files in "),
                       HasSubstr("found 1000 bytes free, needed are at least 4000")));
    EXPECT_THAT(fs::directory_iterator(root.path()), testing::Eq(fs::directory_iterator()));
  }
}

}  // namespace
}  // namespace shardwise
