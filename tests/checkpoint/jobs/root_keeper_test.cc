#include "shardwise/jobs/detail/save/root_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardwise/jobs/manager.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

TEST(RootKeeper, SupersedesWhatNoRuleKeepsAndNoNameDoes) {
  const TempDir dir;
  const auto files = posix_file_system();
  CheckpointManager manager(dir.path());
  const HostTensor tensor = host_tensor("x", DType::f32, {10}, "1", "-");
  for (const std::int64_t step : {1, 2, 3, 4}) {
    manager.save(step, {tensor.source()}, {.metrics = {{"loss", step == 2 ? 0.5 : 1.0}}});
  }
  const jobs_detail::LatestSteps finder(*files, dir.path(), false);
  const auto gone = [&](const KeepOptions& rules) {
    detail::Failures failures;
    const auto steps =
        jobs_detail::superseded(*files, dir.path(), manager.steps(), rules, finder, failures);
    EXPECT_TRUE(failures.none());
    return steps;
  };
  const BestSteps best{.metric = "loss", .count = 1};
  EXPECT_THAT(gone({}), testing::IsEmpty());
  EXPECT_THAT(gone({.last = 2}), testing::ElementsAre(1, 2));
  EXPECT_THAT(gone({.last = 1, .best = best}), testing::ElementsAre(1, 3));
  manager.pins().add(1, "first");
  EXPECT_THAT(gone({.last = 1, .best = best}), testing::ElementsAre(3));
  EXPECT_EQ(jobs_detail::best_of(*files, manager.steps(), best)->step, 2);
  EXPECT_FALSE(jobs_detail::best_of(*files, manager.steps(), {.metric = "accuracy"}));
}

}  // namespace
}  // namespace shardwise
