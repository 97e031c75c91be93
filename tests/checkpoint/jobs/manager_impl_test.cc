#include "shardwise/jobs/detail/manager_impl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/jobs/detail/caller.h"
#include "shardwise/jobs/detail/internals.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/runtime/process/rendezvous.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using jobs_detail::ManagerInternals;
using testing::ElementsAre;
using testing::HasSubstr;
using Impl = ManagerInternals::Impl;

class ManagerImpl : public testing::Test {
 protected:
  static Impl& impl(const CheckpointManager& manager) { return ManagerInternals::impl(manager); }

  SaveStats save(CheckpointManager& manager, std::int64_t step, SaveOptions options = {}) const {
    return impl(manager)
        .start(step, {tensor_.source()}, std::move(options), Impl::HostMemory::in_place)
        .wait();
  }

  const TempDir dir_;
  const HostTensor tensor_ = host_tensor("x", DType::f32, {10}, "1", "-");
  const GroupRendezvous alone_{{}, "restore"};
};

TEST_F(ManagerImpl, CountsBytesAndNamesItsRoot) {
  const std::vector<TensorSource> sources{tensor_.source(), tensor_.source()};
  EXPECT_EQ(Impl::bytes_of(sources), 80u);
  EXPECT_EQ(Impl::opening("a/b"), "open checkpoint root a/b");
}

TEST_F(ManagerImpl, EachDoorOfASaveStartsHere) {
  CheckpointManager manager(dir_.path());
  EXPECT_EQ(save(manager, 1).directory, dir_ / "step-00000001");
  PendingSave copied = impl(manager).start(2, {tensor_.source()}, {}, Impl::HostMemory::copied);
  EXPECT_GT(copied.wait().memory_bytes, 0u);
  EXPECT_THAT(message_of(ErrorCode::already_exists, [&] { save(manager, 2); }),
              HasSubstr("step-00000002"));
  message_of(ErrorCode::invalid_argument, [&] { save(manager, -1); });
  EXPECT_EQ(manager.steps().size(), 2u);
}

TEST_F(ManagerImpl, TakesTheTimesThatItsCallerTells) {
  CheckpointManager manager(dir_.path());
  const jobs_detail::CallersPart told{.waited_seconds = 1000, .copied_bytes = 123'456'789};
  const SaveStats stats =
      impl(manager).start(1, {tensor_.source()}, {}, Impl::HostMemory::in_place, &told).wait();
  EXPECT_GE(stats.blocked_seconds, 1000);
  EXPECT_GE(stats.memory_bytes, 123'456'789u);
}

TEST_F(ManagerImpl, AStepThatIsThereIsAnErrorOrOneOfTheTolerated) {
  CheckpointManager strict(dir_.path());
  EXPECT_EQ(impl(strict).refuse_existing(1), nullptr);
  save(strict, 1);
  message_of(ErrorCode::already_exists, [&] { impl(strict).refuse_existing(1); });
  ManagerInternals::note_damaged(strict, 1);  // a damaged one is replaced
  EXPECT_EQ(impl(strict).refuse_existing(1), nullptr);
}

TEST_F(ManagerImpl, FindsAndRestoresOneStepOrTheNewest) {
  CheckpointManager manager(dir_.path());
  for (const std::int64_t step : {1, 2}) save(manager, step);
  EXPECT_EQ(impl(manager).find(1).directory, dir_ / "step-00000001");
  EXPECT_THAT(message_of(ErrorCode::no_such_name, [&] { impl(manager).find(3); }),
              HasSubstr("its steps are 1, 2"));
  std::vector<std::int64_t> restored;
  const auto restore = [&](const Step& step) { restored.push_back(step.step); };
  EXPECT_EQ(impl(manager).restore(alone_, 1, restore)->step.step, 1);
  EXPECT_EQ(impl(manager).restore(alone_, std::nullopt, restore)->step.step, 2);
  EXPECT_THAT(restored, ElementsAre(1, 2));
  EXPECT_EQ(impl(manager).latest(alone_, 2)->step.step, 1);

  const auto is_damaged = [&](const Step& step) {
    restored.push_back(step.step);
    if (step.step == 2) throw Error(ErrorCode::corrupt, "a chunk of step 2");
  };
  const auto found = impl(manager).restore(alone_, std::nullopt, is_damaged);
  EXPECT_EQ(found->step.step, 1);
  EXPECT_THAT(restored, ElementsAre(1, 2, 2, 1));
  EXPECT_TRUE(impl(manager).find(2).is_damaged);
  EXPECT_EQ(impl(manager).refuse_existing(2), nullptr);
}

TEST_F(ManagerImpl, AfterACommitItProtectsRemovesAndTells) {
  ManagerOptions options{.keep = {.last = 1}};
  options.write.parity_blocks = 2;
  CheckpointManager manager(dir_.path(), options);
  save(manager, 1);
  const SaveStats stats = save(manager, 2);
  EXPECT_GT(stats.parity_bytes, 0u);
  EXPECT_EQ(stats.cleanup_error, "");
  EXPECT_EQ(manager.steps().size(), 1u);
  EXPECT_TRUE(std::filesystem::exists(dir_ / "stats-step-00000002.json"));

  // An error after the commit does not fail the save: it is told.
  SaveStats again = stats;
  std::filesystem::remove_all(stats.directory);
  impl(manager).finish(
      GroupRendezvous({}, ""), {0, 1}, nullptr, [] { return 0.0; }, again);
  EXPECT_THAT(again.cleanup_error, HasSubstr("step-00000002"));
}

TEST_F(ManagerImpl, ASaveThatCannotEndInTimeDoesNotBegin) {
  CheckpointManager manager(dir_.path(), {.when = {.preemption_signals = {SIGUSR2},
                                                   .preemption_grace = std::chrono::hours(1)}});
  save(manager, 1);
  impl(manager).schedule.end(40, 1'000'000);  // as if the step's 40 bytes had taken so long
  std::raise(SIGUSR2);
  EXPECT_THAT(message_of(ErrorCode::cancelled, [&] { save(manager, 2); }),
              HasSubstr("needed are about 1000000.0 s"));
  EXPECT_EQ(manager.steps().size(), 1u);
}

TEST_F(ManagerImpl, OneProcessOwnsARoot) {
  CheckpointManager manager(dir_.path());
  EXPECT_TRUE(impl(manager).owns_root());
  EXPECT_TRUE(impl(manager).writes_increments());
  ManagerOptions options;
  options.write.increments = false;
  EXPECT_FALSE(impl(CheckpointManager(dir_.path(), options)).writes_increments());
}

}  // namespace
}  // namespace shardwise
