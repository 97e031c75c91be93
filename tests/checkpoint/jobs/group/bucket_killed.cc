// Random ranks of a job that saves into a bucket are killed at random instants, on the server that
// SHARDWISE_TEST_S3 names (tests/storage/object/seaweedfs_test.py starts one): bucket_killed KILLS.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "checkpoint/jobs/group/killed_job.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"

namespace shardwise {
namespace {

int kills = 0;

// The claim of a killed job holds for a day, so its leftovers stay until then.
TEST(BucketKilled, RandomRanksAtRandomInstants) {
  std::string root = std::getenv("SHARDWISE_TEST_S3");
  root.insert(root.find('?'), "/killed");
  kill_random_ranks(root, kills, std::chrono::milliseconds(300));
  const CheckpointManager manager(root);
  EXPECT_FALSE(manager.steps().empty());
  for (const Step& step : manager.steps()) {
    EXPECT_TRUE(verify_checkpoint(step.directory).ok()) << step.directory;
  }
}

}  // namespace
}  // namespace shardwise

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  if (argc != 2 || std::getenv("SHARDWISE_TEST_S3") == nullptr) return 2;
  shardwise::kills = std::atoi(argv[1]);
  return RUN_ALL_TESTS();
}
