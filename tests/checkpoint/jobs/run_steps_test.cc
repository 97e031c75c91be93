// A run that goes back in a used root, and two managers that save in one root.

#include "shardwise/jobs/detail/save/run_steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/jobs/detail/internals.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "testing/errors.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<TensorSource> tensors() {
  return {host_tensor("w", DType::f32, {30, 20}, "2", "0,-", Values::noise, 1).source()};
}

std::vector<std::int64_t> numbers(const CheckpointManager& manager, bool is_set_aside) {
  std::vector<std::int64_t> found;
  for (const Step& step : manager.steps()) {
    if (step.is_set_aside == is_set_aside) found.push_back(step.step);
  }
  return found;
}

ManagerOptions keep(std::int64_t last, std::vector<std::string>& told) {
  return {.keep = {.last = last},
          .write = {.stats = false},
          .warn = [&told](const std::string& text) { told.push_back(text); }};
}

void save_all(CheckpointManager& manager, std::int64_t first, std::int64_t last) {
  for (std::int64_t step = first; step <= last; ++step) manager.save(step, tensors());
}

TEST(RunSteps, ARunThatGoesBackKeepsItsOwnStepsAndTheOnesItLeft) {
  const TempDir dir;
  std::vector<std::string> told;
  {
    CheckpointManager old(dir.path(), keep(2, told));
    save_all(old, 58, 60);
  }
  EXPECT_THAT(told, IsEmpty());
  CheckpointManager manager(dir.path(), keep(2, told));
  save_all(manager, 1, 30);
  EXPECT_THAT(numbers(manager, false), ElementsAre(29, 30));
  EXPECT_THAT(numbers(manager, true), ElementsAre(59, 60));
  EXPECT_EQ(manager.latest()->step.step, 30);
  EXPECT_THAT(told, ElementsAre(AllOf(HasSubstr("step 1 is saved below the steps 59, 60"),
                                      HasSubstr("rm " + dir.path().string() + " 59 60"))));
  EXPECT_THAT(manager.collect_garbage().kept, IsEmpty());

  CheckpointManager restart(dir.path(), {.collect_garbage = false});
  std::int64_t restored = 0;
  const auto found =
      restart.restore_latest([&](const CheckpointReader& reader) { restored = reader.step(); });
  EXPECT_EQ(found->step.step, 30);
  EXPECT_EQ(restored, 30);

  for (const Existing existing : {Existing::fail, Existing::skip}) {
    const std::int64_t step = existing == Existing::fail ? 59 : 60;
    const SaveStats stats = manager.save(step, tensors(), {.existing = existing});
    EXPECT_FALSE(stats.skipped);
    EXPECT_THAT(stats.directory.filename().string(), testing::EndsWith(".g2"));
  }
  EXPECT_THAT(numbers(manager, false), ElementsAre(59, 60));
  EXPECT_THAT(numbers(manager, true), IsEmpty());
  EXPECT_EQ(told.size(), 1);
}

TEST(RunSteps, AManagerThatHasRestoredAnOlderStepKeepsTheNewOnes) {
  const TempDir dir;
  std::vector<std::string> told;
  CheckpointManager manager(dir.path(), keep(2, told));
  save_all(manager, 28, 30);
  for (const std::int64_t step : {29, 30}) {  // again, which is no way back
    manager.save(step, tensors(), {.existing = Existing::replace});
  }
  manager.save(27, tensors());  // in any order, and none was restored
  EXPECT_THAT(told, IsEmpty());
  jobs_detail::ManagerInternals::note_restored(manager, 29);
  manager.save(30, tensors(), {.existing = Existing::replace});  // no way back, either
  EXPECT_THAT(told, IsEmpty());
  save_all(manager, 11, 15);
  EXPECT_THAT(numbers(manager, false), ElementsAre(14, 15));
  EXPECT_THAT(numbers(manager, true), ElementsAre(29, 30));
  EXPECT_EQ(manager.latest()->step.step, 15);
  EXPECT_TRUE(manager.restore_latest([](const CheckpointReader&) {}));
  manager.save(13, tensors());  // a second time
  EXPECT_THAT(numbers(manager, false), ElementsAre(13));
  EXPECT_THAT(numbers(manager, true), ElementsAre(14, 15, 29, 30));
  ASSERT_EQ(told.size(), 2);
  EXPECT_THAT(told[1], HasSubstr("step 13 is saved below the steps 14, 15, which"));
  save_all(manager, 14, 16);  // in the place of those that it left
  EXPECT_THAT(numbers(manager, false), ElementsAre(15, 16));
  EXPECT_THAT(numbers(manager, true), ElementsAre(29, 30));
}

TEST(RunSteps, RemovedStepsTakeTheirMarksAlongAndNoneButThemIsNoFreshStart) {
  const TempDir dir;
  std::vector<std::string> told;
  {
    CheckpointManager old(dir.path(), keep(0, told));
    save_all(old, 8, 9);
  }
  CheckpointManager manager(dir.path(), keep(0, told));
  manager.save(1, tensors());
  EXPECT_EQ(manager.step(9).is_set_aside, true);
  manager.remove(1);
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { static_cast<void>(manager.latest()); }),
              HasSubstr(".aside-step-00000009"));
  manager.remove(9);
  EXPECT_FALSE(std::filesystem::exists(dir / ".aside-step-00000009"));
  std::filesystem::remove_all(dir / "step-00000008");
  manager.save(8, tensors());  // its name has an old mark
  EXPECT_THAT(numbers(manager, false), ElementsAre(8));
}

TEST(RunSteps, TwoManagersOfOneRootKeepTheirOwn) {
  const TempDir dir;
  std::vector<std::string> told, told_other;
  CheckpointManager one(dir.path(), keep(2, told)), other(dir.path(), keep(2, told_other));
  for (std::int64_t step = 1; step <= 6; ++step) {
    one.save(step, tensors());
    other.save(100 + step, tensors());
  }
  EXPECT_THAT(numbers(one, false), ElementsAre(5, 6, 105, 106));
  EXPECT_THAT(numbers(one, true), IsEmpty());
  ASSERT_EQ(told.size(), 1);
  ASSERT_EQ(told_other.size(), 1);
  EXPECT_THAT(told_other[0], HasSubstr("another manager saves there: process "));
  EXPECT_THAT(other.collect_garbage().kept, IsEmpty());
}

TEST(RunSteps, ADeadWriterBlocksNobody) {
  const TempDir dir;
  std::vector<std::string> told;
  {
    CheckpointManager old(dir.path(), keep(2, told));
    save_all(old, 8, 9);
  }
  detail::LeaseOwner dead = detail::this_process();
  dead.start += 1;
  const std::string name = ".writer." + std::string(32, 'a');
  std::ofstream(dir / name) << print_lease(dead);
  ManagerOptions options = keep(2, told);
  options.collect_garbage = false;
  CheckpointManager manager(dir.path(), options);
  save_all(manager, 1, 3);
  EXPECT_THAT(numbers(manager, false), ElementsAre(2, 3));
  EXPECT_THAT(numbers(manager, true), ElementsAre(8, 9));
  EXPECT_THAT(manager.collect_garbage().removed, Contains(name));
}

TEST(RunSteps, AWriterOfAnotherHostCountsAsDeadAnHourAfterItsLastSave) {
  detail::LeaseOwner elsewhere = detail::this_process();
  elsewhere.host = "elsewhere";
  elsewhere.machine = "another";
  elsewhere.boot = "another";
  for (const int minutes : {50, 70}) {
    const TempDir dir;
    std::vector<std::string> told;
    {
      CheckpointManager old(dir.path(), keep(2, told));
      save_all(old, 8, 9);
    }
    const std::filesystem::path lease = dir / (".writer." + std::string(32, 'a'));
    std::ofstream(lease) << print_lease(elsewhere);
    std::filesystem::last_write_time(
        lease, std::filesystem::file_time_type::clock::now() - std::chrono::minutes(minutes));
    CheckpointManager manager(dir.path(), keep(2, told));
    save_all(manager, 1, 3);
    EXPECT_THAT(numbers(manager, true).size(), minutes > 60 ? 2u : 0u);
    ASSERT_EQ(told.size(), 1u);
    EXPECT_THAT(told[0], HasSubstr(minutes > 60 ? "set aside" : "on elsewhere, last 20"));
    EXPECT_THAT(numbers(manager, false).size(), minutes > 60 ? 2u : 4u);
  }
}

TEST(RunSteps, MarksThatCannotBeMadeAreMadeByTheNextSave) {
  const TempDir dir;
  std::vector<std::string> told;
  {
    CheckpointManager old(dir.path(), keep(2, told));
    save_all(old, 8, 9);
  }
  bool fails = true;
  ManagerOptions options = keep(1, told);
  options.file_system = std::make_shared<HookedFileSystem>(
      [&](std::string_view operation, const std::filesystem::path& path) {
        if (fails && operation == "create" && path.filename() == ".aside-step-00000009") {
          throw Error(ErrorCode::io, "injected");
        }
      });
  CheckpointManager manager(dir.path(), options);
  EXPECT_THAT(manager.save(1, tensors()).cleanup_error, HasSubstr("injected"));
  EXPECT_EQ(manager.latest()->step.step, 9);
  EXPECT_THAT(told, IsEmpty());
  fails = false;
  EXPECT_EQ(manager.save(2, tensors()).cleanup_error, "");
  EXPECT_EQ(manager.latest()->step.step, 2);
  EXPECT_THAT(numbers(manager, false), ElementsAre(2));
  EXPECT_THAT(numbers(manager, true), ElementsAre(8, 9));
}

}  // namespace
}  // namespace shardwise
