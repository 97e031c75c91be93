#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "testing/child_process.h"
#include "testing/fault_model.h"
#include "testing/socket_transport.h"

// Jobs of checkpoint_group_program, whose processes are killed.
namespace shardwise {

/// The processes of a job, and their sockets, which are the children's alone.
inline std::vector<std::unique_ptr<ChildProcess>> start_job(const std::string& kind,
                                                            const std::filesystem::path& root,
                                                            int ranks) {
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

inline std::int64_t number_in(const std::string& line) {
  return std::stoll(line.substr(line.find(' ') + 1));
}

/// The step that the process says it has restored, -1 if it does not; the last one that it says it
/// has saved or restored; and its last words.
struct Said {
  std::int64_t restored = -1, step = 0;
  std::string last;
};

inline Said listen(ChildProcess& process) {
  Said said;
  for (std::string line = process.line(); !line.empty(); line = process.line()) {
    if (line.starts_with("restored ")) said.restored = number_in(line);
    if (line.starts_with("restored ") || line.starts_with("saved ")) said.step = number_in(line);
    said.last = std::move(line);
  }
  return said;
}

/// Kills random ranks of jobs of 2 to 4 processes at random instants, one job after the other on
/// one root, and looks at the root after each. `longest_wait`: about the time of a save.
inline void kill_random_ranks(const std::filesystem::path& root, int kills,
                              std::chrono::microseconds longest_wait) {
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
        std::chrono::steady_clock::now() +
        std::chrono::microseconds(random() % static_cast<std::uint64_t>(longest_wait.count()));
    while (std::chrono::steady_clock::now() < instant) continue;
    job[victim]->kill();
    SCOPED_TRACE(testing::Message() << "round " << round << ", rank " << victim << " of " << ranks);
    for (std::size_t rank = 0; rank < job.size(); ++rank) {
      const Said said = listen(*job[rank]);
      known = std::max(known, said.step);
      if (rank == victim) continue;
      EXPECT_THAT(said.last, testing::HasSubstr("failed: "));
      EXPECT_THAT(said.last, testing::HasSubstr("rank " + std::to_string(victim)));
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
  std::cout << kills << " kills, " << known << " steps\n";
}

}  // namespace shardwise
