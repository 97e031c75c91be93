#include "schedule.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "testing/errors.h"

namespace gpt {
namespace {

TEST(Schedule, RunsEachMicroBatchOnceInEachStageAfterTheStageBefore) {
  for (std::int64_t stages = 1; stages <= 6; ++stages) {
    for (std::int64_t micro_batches = stages; micro_batches <= 9; ++micro_batches) {
      const Schedule schedule{stages, micro_batches};
      std::int64_t idle = 0;
      for (std::int64_t stage = 0; stage < stages; ++stage) {
        std::int64_t next = 0;
        for (std::int64_t trip = 0; trip < schedule.trips(); ++trip) {
          const auto now = schedule.micro_batch(stage, trip);
          if (!now) {
            ++idle;
            continue;
          }
          EXPECT_EQ(*now, next++);
          if (stage > 0) {
            EXPECT_EQ(schedule.micro_batch(stage - 1, trip - 1), now);
          }
        }
        EXPECT_EQ(next, micro_batches);
      }
      EXPECT_DOUBLE_EQ(schedule.bubble(),
                       static_cast<double>(idle) / static_cast<double>(stages * schedule.trips()));
    }
  }
}

TEST(Schedule, TellsTheLayersOfEachStageAndTheLargestPeak) {
  const auto shares = stage_shares(shardwise::Mesh::parse("stage=2,data=2"), 6, {10, 40, 30, 20});
  ASSERT_EQ(shares.size(), 2u);
  EXPECT_EQ(to_string({2, 3}, shares),
            "pipeline: 2 stages, 3 micro-batches; each stage waits 1 of 4 trips, 25.0 %\n"
            "stage 0     layers 0 to 2, 40 bytes at the peak of a device\n"
            "stage 1     layers 3 to 5, 30 bytes at the peak of a device\n");
}

}  // namespace
}  // namespace gpt
