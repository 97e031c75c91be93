#include "shardwise/jobs/detail/save/damaged_steps.h"

#include <gtest/gtest.h>

#include <vector>

#include "shardwise/jobs/manager.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

TEST(DamagedSteps, ArePassedOverByIncrements) {
  const TempDir dir;
  const auto files = posix_file_system();
  CheckpointManager manager(dir.path());
  const HostTensor tensor = host_tensor("x", DType::f32, {10}, "1", "-");
  for (const std::int64_t step : {1, 2, 3}) manager.save(step, {tensor.source()});
  jobs_detail::DamagedSteps damaged;
  const auto earlier = [&](std::int64_t step) {
    return damaged.find_earlier(*files, dir.path(), step).directory.filename().string();
  };
  EXPECT_EQ(earlier(4), "step-00000003");
  EXPECT_EQ(earlier(3), "step-00000002");  // not the step that it replaces
  damaged.note(3);
  EXPECT_TRUE(damaged.contains(3));
  EXPECT_EQ(earlier(4), "step-00000002");
  const std::vector<RejectedStep> rejected{{dir / "step-00000002", "a reason"},
                                           {dir / "step-00000001", "of others", true}};
  damaged.note(rejected);
  EXPECT_EQ(earlier(4), "step-00000001");  // that is not damaged
  damaged.forget(3);
  EXPECT_EQ(earlier(4), "step-00000003");
  damaged.note(damaged.find_earlier(*files, dir.path(), 4));
  EXPECT_TRUE(damaged.contains(3));
}

}  // namespace
}  // namespace shardwise
