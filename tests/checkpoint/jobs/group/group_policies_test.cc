// The processes of a job, which are threads here, agree when they save, and where they resume.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/detail/internals.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "testing/fake_clock.h"
#include "testing/host_tensor.h"
#include "testing/socket_transport.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr int kPolicyRanks = 4;

class GroupPolicies : public testing::Test {
 protected:
  /// Runs on every rank; gives the error of each.
  std::vector<std::string> on_ranks(
      const std::function<void(int rank, CheckpointManager&)>& run,
      const std::function<void(int rank, ManagerOptions&)>& change = {}) const {
    return run_ranks(kPolicyRanks, {}, [&](std::shared_ptr<SocketTransport> transport) {
      const ProcessGroup group(std::move(transport));
      ManagerOptions options{
          .when = {.every = 0}, .write = {.threads = 1}, .group = group, .devices = kPolicyRanks};
      if (change) change(group.rank(), options);
      CheckpointManager manager(dir_ / "root", options);
      run(group.rank(), manager);
    });
  }

  void save(CheckpointManager& manager, std::int64_t step) const {
    manager.save(step, {tensor_.source()});
  }

  const TempDir dir_;
  const HostTensor tensor_ = host_tensor("x", DType::f32, {64, 10}, "4", "0,-");
};

TEST_F(GroupPolicies, ARequestOfOneRankIsHeardByAll) {
  std::array<std::vector<bool>, kPolicyRanks> answers;
  EXPECT_THAT(on_ranks([&](int rank, CheckpointManager& manager) {
                for (std::int64_t step = 0; step < 4; ++step) {
                  if (rank == 2 && step == 1) manager.request_save();
                  answers[static_cast<std::size_t>(rank)].push_back(manager.should_save(step));
                }
              }),
              Each(""));
  EXPECT_THAT(answers, Each(ElementsAre(false, true, false, false)));
}

TEST_F(GroupPolicies, TheIntervalIsRankZeros) {
  std::array<std::vector<bool>, kPolicyRanks> answers;
  std::array<std::shared_ptr<FakeClock>, kPolicyRanks> clocks;
  for (auto& clock : clocks) clock = std::make_shared<FakeClock>();
  EXPECT_THAT(on_ranks(
                  [&](int rank, CheckpointManager& manager) {
                    const auto i = static_cast<std::size_t>(rank);
                    clocks[i]->wait_until(std::chrono::seconds(rank == 3 ? 60 : 0));
                    answers[i].push_back(manager.should_save(1));
                    clocks[i]->wait_until(std::chrono::seconds(rank == 0 ? 60 : 0));
                    answers[i].push_back(manager.should_save(2));
                  },
                  [&](int rank, ManagerOptions& options) {
                    options.when.interval = std::chrono::seconds(60);
                    options.when.clock = clocks[static_cast<std::size_t>(rank)];
                  }),
              Each(""));
  EXPECT_THAT(answers, Each(ElementsAre(false, true)));
}

TEST_F(GroupPolicies, ARestartGoesBackOnAllRanksIfBytesAreDamagedForOne) {
  std::array<std::int64_t, kPolicyRanks> steps{};
  std::array<std::string, kPolicyRanks> reasons;
  EXPECT_THAT(on_ranks([&](int rank, CheckpointManager& manager) {
                for (std::int64_t step = 1; step <= 3; ++step) save(manager, step);
                const auto i = static_cast<std::size_t>(rank);
                const auto found = manager.restore_latest([&](const CheckpointReader& reader) {
                  if (rank == 1 && reader.step() == 3) {
                    throw Error(ErrorCode::corrupt, "a chunk is damaged");
                  }
                });
                steps[i] = found->step.step;
                reasons[i] = found->rejected.at(0).reason;
              }),
              Each(""));
  EXPECT_THAT(steps, Each(2));
  EXPECT_THAT(reasons, Each("rank 1: a chunk is damaged"));
}

TEST_F(GroupPolicies, ADamagedStepIsReplacedOnAllRanksIfRankZeroKnowsOfIt) {
  for (const int knower : {0, 2}) {
    const std::int64_t step = knower + 1;
    const std::vector<std::string> errors = on_ranks([&](int rank, CheckpointManager& manager) {
      save(manager, step);
      if (rank == knower) jobs_detail::ManagerInternals::note_damaged(manager, step);
      save(manager, step);
    });
    if (knower == 0) {
      EXPECT_THAT(errors, Each(""));
    } else {
      EXPECT_THAT(errors, Each(HasSubstr("already")));
    }
    const Step there = CheckpointManager(dir_ / "root").step(step);
    EXPECT_EQ(there.generation, knower == 0 ? 2 : 1);
    EXPECT_TRUE(verify_checkpoint(there.directory).ok());
  }
}

TEST_F(GroupPolicies, AnotherErrorOfOneRankEndsTheRestartOnAll) {
  const std::vector<std::string> errors = on_ranks([&](int rank, CheckpointManager& manager) {
    save(manager, 1);
    manager.restore_latest([&](const CheckpointReader&) {
      if (rank == 2) throw Error(ErrorCode::invalid_argument, "another model");
    });
  });
  EXPECT_EQ(errors[2], "another model");
  for (const int rank : {0, 1, 3}) {
    EXPECT_THAT(errors[static_cast<std::size_t>(rank)],
                AllOf(HasSubstr("step-00000001: rank 2: another model")));
  }
}

TEST_F(GroupPolicies, WhetherASaveIsSkippedIsRankZerosToSay) {
  std::array<std::vector<bool>, kPolicyRanks> skipped;
  EXPECT_THAT(on_ranks(
                  [&](int rank, CheckpointManager& manager) {
                    for (std::int64_t step = 1; step <= 20; ++step) {
                      skipped[static_cast<std::size_t>(rank)].push_back(
                          manager.save_async(step, {tensor_.source()}).wait().skipped);
                    }
                    std::vector<PendingSave> pending;
                    for (std::int64_t step = 21; step <= 40; ++step) {
                      pending.push_back(manager.save_async(step, {tensor_.source()}));
                    }
                    for (const PendingSave& save : pending) {
                      skipped[static_cast<std::size_t>(rank)].push_back(save.wait().skipped);
                    }
                  },
                  [](int, ManagerOptions& options) { options.write.when_busy = WhenBusy::skip; }),
              Each(""));
  EXPECT_THAT(skipped, Each(skipped[0]));
  EXPECT_THAT(std::vector<bool>(skipped[0].begin(), skipped[0].begin() + 20), Each(false));
}

TEST_F(GroupPolicies, WhichSaveIsReplacedIsRankZerosToSay) {
  std::array<std::vector<bool>, kPolicyRanks> skipped;
  EXPECT_THAT(
      on_ranks(
          [&](int rank, CheckpointManager& manager) {
            std::vector<PendingSave> pending;
            for (std::int64_t step = 1; step <= 40; ++step) {
              pending.push_back(manager.save_async(step, {tensor_.source()}));
              if (step % 10 == 0) pending.back().wait();
            }
            for (const PendingSave& save : pending) {
              skipped[static_cast<std::size_t>(rank)].push_back(save.wait().skipped);
            }
          },
          [](int, ManagerOptions& options) { options.write.when_busy = WhenBusy::replace; }),
      Each(""));
  EXPECT_THAT(skipped, Each(skipped[0]));
  for (const std::size_t last : {9, 19, 29, 39}) EXPECT_FALSE(skipped[0][last]);
  for (std::size_t i = 0; i < skipped[0].size(); ++i) {
    EXPECT_EQ(fs::exists(dir_ / "root" / fmt::format("step-{:08}", i + 1)), !skipped[0][i]);
  }
}

// Rank 2 is in its first save until all have asked for three more.
TEST_F(GroupPolicies, ASaveIsReplacedOnAllRanksIfOneIsSlow) {
  std::latch all_have_asked(kPolicyRanks);
  EXPECT_THAT(
      on_ranks(
          [&](int rank, CheckpointManager& manager) {
            const TensorSource slow =
                callback_tensor("x", tensor_.spec, [&](const Box& box, std::span<std::byte> out) {
                  if (rank == 2) all_have_asked.wait();
                  tensor_.source().reader->read(0, box, out);
                });
            const PendingSave first = manager.save_async(1, {slow});
            const PendingSave second = manager.save_async(2, {tensor_.source()});
            const PendingSave third = manager.save_async(3, {tensor_.source()});
            const PendingSave fourth = manager.save_async(4, {tensor_.source()});
            EXPECT_TRUE(second.wait().skipped);
            EXPECT_TRUE(third.wait().skipped);
            all_have_asked.count_down();
            manager.close();
            EXPECT_FALSE(first.wait().skipped);
            EXPECT_FALSE(fourth.wait().skipped);
          },
          [](int, ManagerOptions& options) { options.write.when_busy = WhenBusy::replace; }),
      Each(""));
  EXPECT_EQ(CheckpointManager(dir_ / "root").steps().size(), 2);
}

// The first save fails on all ranks, and each hears of it at the same call.
TEST_F(GroupPolicies, WhatWentWrongBeforeASaveThatWaitedIsToldToAllRanks) {
  std::latch all_have_asked(kPolicyRanks), all_have_begun(kPolicyRanks),
      all_have_heard(kPolicyRanks);
  EXPECT_THAT(
      on_ranks(
          [&](int rank, CheckpointManager& manager) {
            const TensorSource broken =
                callback_tensor("x", tensor_.spec, [&](const Box&, std::span<std::byte>) {
                  all_have_asked.wait();
                  if (rank == 1) throw Error(ErrorCode::io, "rank 1 is broken");
                });
            std::atomic<bool> has_begun = false;
            const TensorSource slow =
                callback_tensor("x", tensor_.spec, [&](const Box& box, std::span<std::byte> out) {
                  if (!has_begun.exchange(true)) all_have_begun.count_down();
                  all_have_heard.wait();
                  tensor_.source().reader->read(0, box, out);
                });
            manager.save_async(1, {broken});
            manager.save_async(2, {slow});
            all_have_asked.count_down();
            all_have_begun.wait();
            try {
              manager.save_async(3, {tensor_.source()});
              ADD_FAILURE() << "rank " << rank << " has not heard of it";
            } catch (const Error& e) {
              EXPECT_THAT(e.what(), HasSubstr("rank 1 is broken"));
            }
            all_have_heard.count_down();
            manager.save_async(4, {tensor_.source()});
            manager.close();
          },
          [](int, ManagerOptions& options) { options.write.when_busy = WhenBusy::replace; }),
      Each(""));
  EXPECT_EQ(CheckpointManager(dir_ / "root").steps().size(), 2);
}

TEST_F(GroupPolicies, MetricsAreRankZeros) {
  EXPECT_THAT(on_ranks([&](int rank, CheckpointManager& manager) {
                manager.save(1, {tensor_.source()}, {.metrics = {{"loss", rank}}});
              }),
              Each(""));
  const CheckpointReader reader(CheckpointManager(dir_ / "root").step(1).directory);
  EXPECT_THAT(reader.metrics(), ElementsAre(testing::Pair("loss", 0)));
}

// Each process writes that of its own files.
TEST_F(GroupPolicies, EachFileGetsItsParity) {
  for (const std::int64_t writers : {1, 2}) {
    std::array<std::string, kPolicyRanks> problems;
    std::array<std::size_t, kPolicyRanks> bytes{};
    const std::int64_t step = writers;
    const HostTensor tensor =
        host_tensor("x", DType::f32, {4000, 10}, "8", "0,-", Values::noise, 1);
    EXPECT_THAT(on_ranks(
                    [&](int rank, CheckpointManager& manager) {
                      const SaveStats stats =
                          manager.save(step, {tensor.source()}, {.writers = writers});
                      problems[static_cast<std::size_t>(rank)] = stats.cleanup_error;
                      bytes[static_cast<std::size_t>(rank)] = stats.parity_bytes;
                    },
                    [](int, ManagerOptions& options) {
                      options.write.parity_blocks = 2;
                      options.devices = 8;
                    }),
                Each(""));
    EXPECT_THAT(problems, Each(""));
    EXPECT_THAT(bytes, Each(testing::Gt(0u)));
    const VerifyReport report =
        verify_checkpoint(CheckpointManager(dir_ / "root").step(step).directory);
    EXPECT_TRUE(report.ok());
    EXPECT_EQ(report.parity_files, kPolicyRanks * writers);
  }
}

}  // namespace
}  // namespace shardwise
