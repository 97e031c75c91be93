#include "shardwise/jobs/detail/save/latest_step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardwise/jobs/manager.h"
#include "shardwise/runtime/process/rendezvous.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using jobs_detail::LatestSteps;

TEST(LatestSteps, AreValidAndBelowALimit) {
  const TempDir dir;
  const auto files = posix_file_system();
  const LatestSteps steps(*files, dir.path(), false);
  EXPECT_FALSE(steps.find());
  CheckpointManager manager(dir.path());
  const HostTensor tensor = host_tensor("x", DType::f32, {10}, "1", "-");
  for (const std::int64_t step : {1, 2, 3}) manager.save(step, {tensor.source()});
  EXPECT_EQ(steps.find()->step.step, 3);
  EXPECT_EQ(steps.find(3)->step.step, 2);
  write_file(dir / "step-00000002" / "manifest.json", "no JSON");
  const auto found = steps.find(3);
  EXPECT_EQ(found->step.step, 1);
  ASSERT_EQ(found->rejected.size(), 1u);
  EXPECT_THAT(found->rejected[0].reason, testing::HasSubstr("does not end in its checksum"));
  EXPECT_EQ(steps.find_valid(3)->step, 3);
  EXPECT_FALSE(steps.find_valid(4));
  EXPECT_THAT(message_of(ErrorCode::already_exists, [&] { steps.find_valid(2); }),
              testing::HasSubstr("step-00000002"));
  write_file(dir / "step-00000001" / "manifest.json", "no JSON");
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { steps.find(3); }),
              testing::HasSubstr("step-00000001"));
}

TEST(LatestSteps, ARestartGoesBackPastWhatItCannotRead) {
  const TempDir dir;
  const auto files = posix_file_system();
  CheckpointManager manager(dir.path());
  const HostTensor tensor = host_tensor("x", DType::f32, {10}, "1", "-");
  for (const std::int64_t step : {1, 2, 3}) manager.save(step, {tensor.source()});
  const LatestSteps steps(*files, dir.path(), false);
  const GroupRendezvous alone({}, "");
  const auto restored = [&](std::int64_t least) {
    return jobs_detail::restore_newest(steps, dir.path(), alone, [&](const Step& step) {
      if (step.step > least) throw Error(ErrorCode::corrupt, "its bytes are bad");
    });
  };
  EXPECT_EQ(restored(2)->step.step, 2);
  EXPECT_EQ(restored(1)->rejected.size(), 2u);
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { restored(0); }),
              testing::HasSubstr("its bytes are bad"));
}

}  // namespace
}  // namespace shardwise
