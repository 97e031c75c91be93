// Random ranks of a job are killed at random instants, again and again on one root, with another
// number of processes each time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/jobs/group/killed_job.h"
#include "shardwise/jobs/manager.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::HasSubstr;

void kill_random_ranks_of_a_folder(int kills) {
  const TempDir dir;
  const std::filesystem::path root = dir / "root";
  kill_random_ranks(root, kills, std::chrono::milliseconds(15));
  // Their leftovers are cleared away.
  CheckpointManager manager(root);
  manager.collect_garbage();
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
  }
}

// Hosts are folders. Each job restores the last step that was certain, or a newer one, and says so.
void kill_random_ranks_of_tiers(int kills) {
  const TempDir dir;
  constexpr int kProcesses = 3;
  std::mt19937_64 random(8);
  std::int64_t known = 0;
  int in_saves = 0;
  for (int round = 0; round < kills; ++round) {
    const auto victim = static_cast<std::size_t>(random() % kProcesses);
    SCOPED_TRACE(testing::Message() << "round " << round << ", rank " << victim);
    const auto job = start_job("tiers", dir.path(), kProcesses);
    // The first job lives until a step is in the durable root: from then on there is one.
    const int lines = round == 0 ? 5 : static_cast<int>(random() % 4);
    std::vector<Said> said(kProcesses);
    for (int line = 0; line < lines; ++line) {
      const std::string text = job[0]->line();
      if (text.starts_with("restored ")) said[0].restored = number_in(text);
      if (text.starts_with("restored ") || text.starts_with("saved ")) {
        said[0].step = number_in(text);
      }
    }
    in_saves += lines > 0 ? 1 : 0;
    const auto instant =
        std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 15'000);
    while (std::chrono::steady_clock::now() < instant) continue;
    job[victim]->kill();
    const std::int64_t before = known;
    for (std::size_t rank = 0; rank < job.size(); ++rank) {
      const Said rest = listen(*job[rank]);
      if (rest.restored >= 0) said[rank].restored = rest.restored;
      said[rank].step = std::max(said[rank].step, rest.step);
      known = std::max(known, said[rank].step);
      EXPECT_TRUE(said[rank].restored < 0 || said[rank].restored >= before)
          << "rank " << rank << " has restored " << said[rank].restored << " of " << before;
      if (rank == victim) continue;
      EXPECT_THAT(rest.last, HasSubstr("failed: "));
      EXPECT_THAT(rest.last, HasSubstr("rank " + std::to_string(victim)));
      EXPECT_EQ(job[rank]->status(), 3);
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(in_saves, kills / 2);
  EXPECT_GT(known, kills / 2) << "steps were saved in between";
  std::cout << kills << " kills, " << known << " steps\n";
}

TEST(GroupKilled, RandomRanksOfTiersAtRandomInstants) { kill_random_ranks_of_tiers(20); }

TEST(GroupKilledNightly, RandomRanksOfTiersAtRandomInstants) { kill_random_ranks_of_tiers(400); }

TEST(GroupKilled, RandomRanksAtRandomInstants) { kill_random_ranks_of_a_folder(20); }

TEST(GroupKilledNightly, RandomRanksAtRandomInstants) { kill_random_ranks_of_a_folder(400); }

}  // namespace
}  // namespace shardwise
