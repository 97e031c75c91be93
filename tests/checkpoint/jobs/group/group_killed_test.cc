// Random ranks of a job are killed at random instants, again and again on one root, with another
// number of processes each time.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "testing/child_process.h"
#include "testing/fault_model.h"
#include "testing/socket_transport.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::HasSubstr;

/// The processes of a job, and their sockets, which are the children's alone.
std::vector<std::unique_ptr<ChildProcess>> start_job(const std::string& kind,
                                                     const std::filesystem::path& root, int ranks) {
  const std::vector<std::vector<int>> mesh = socket_mesh(ranks);
  std::vector<std::unique_ptr<ChildProcess>> job;
  for (std::size_t rank = 0; rank < mesh.size(); ++rank) {
    std::vector<std::string> command{SHARDWISE_GROUP_PROGRAM, kind, root, std::to_string(rank)};
    std::vector<int> own;
    for (const int socket : mesh[rank]) {
      command.push_back(std::to_string(socket));
      if (socket >= 0) own.push_back(socket);
    }
    job.push_back(std::make_unique<ChildProcess>(command, own));
  }
  for (const std::vector<int>& sockets : mesh) {
    for (const int socket : sockets) {
      if (socket >= 0) ::close(socket);
    }
  }
  return job;
}

std::int64_t number_in(const std::string& line) {
  return std::stoll(line.substr(line.find(' ') + 1));
}

/// The step that the process says it has restored, -1 if it does not; the last one that it says it
/// has saved or restored; and its last words.
struct Said {
  std::int64_t restored = -1, step = 0;
  std::string last;
};

Said listen(ChildProcess& process) {
  Said said;
  for (std::string line = process.line(); !line.empty(); line = process.line()) {
    if (line.starts_with("restored ")) said.restored = number_in(line);
    if (line.starts_with("restored ") || line.starts_with("saved ")) said.step = number_in(line);
    said.last = std::move(line);
  }
  return said;
}

void kill_random_ranks(int kills) {
  const TempDir dir;
  const std::filesystem::path root = dir / "root";
  std::mt19937_64 random(7);
  std::int64_t known = 0, in_saves = 0;  // `known` was committed: somebody has said so
  for (int round = 0; round < kills; ++round) {
    const int ranks = 2 + static_cast<int>(random() % 3);
    const auto victim = static_cast<std::size_t>(random()) % static_cast<std::size_t>(ranks);
    const auto job = start_job("root", root, ranks);
    // Half of them while they start and restore, the others in some save.
    const int saves = static_cast<int>(random() % 4);
    if (saves > 0) {
      for (int line = 0; line < saves; ++line) job[0]->line();
      ++in_saves;
    }
    const auto instant =
        std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 15'000);
    while (std::chrono::steady_clock::now() < instant) continue;
    job[victim]->kill();
    SCOPED_TRACE(testing::Message() << "round " << round << ", rank " << victim << " of " << ranks);
    for (std::size_t rank = 0; rank < job.size(); ++rank) {
      const Said said = listen(*job[rank]);
      known = std::max(known, said.step);
      if (rank == victim) continue;
      EXPECT_THAT(said.last, HasSubstr("failed: "));
      EXPECT_THAT(said.last, HasSubstr("rank " + std::to_string(victim)));
      EXPECT_EQ(job[rank]->status(), 3);
    }
    const auto latest = CheckpointManager(root, {.collect_garbage = false}).latest();
    ASSERT_TRUE(latest.has_value() || known == 0);
    if (!latest) continue;
    EXPECT_TRUE(latest->rejected.empty());
    EXPECT_GE(latest->step.step, known);
    const auto seed = static_cast<std::uint64_t>(1 + latest->step.step % 3);
    EXPECT_TRUE(holds(CheckpointReader(latest->step.directory), killed_model(seed)));
    known = latest->step.step;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(in_saves, kills / 2);
  EXPECT_GT(known, kills / 2) << "steps were saved in between";
  // Their leftovers are cleared away.
  CheckpointManager manager(root);
  manager.collect_garbage();
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(".")) << entry.path();
  }
  std::cout << kills << " kills, " << known << " steps\n";
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

TEST(GroupKilled, RandomRanksAtRandomInstants) { kill_random_ranks(20); }

TEST(GroupKilledNightly, RandomRanksAtRandomInstants) { kill_random_ranks(400); }

}  // namespace
}  // namespace shardwise
