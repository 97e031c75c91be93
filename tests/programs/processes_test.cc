#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <latch>

#include "shardwise/runtime/manual.h"
#include "shardwise/runtime/ops/control.h"
#include "shardwise/runtime/ops/functions.h"
#include "testing/same_shards.h"
#include "testing/socket_transport.h"
#include "trial.h"

// Programs over devices of several processes, which are threads here.
namespace shardwise {
namespace {

using testing::Each;
using testing::HasSubstr;

constexpr std::chrono::minutes kNever(10);  // a deadline that no machine is too slow for

std::int64_t devices_of(const Mesh& mesh) {
  std::int64_t last = 0;
  for (std::int64_t p = 0; p < mesh.size(); ++p) last = std::max(last, mesh.device_at(p));
  return last + 1;
}

std::vector<ShardedArray> run_trial_on(Devices& devices, const Trial& trial) {
  const Executable executable(std::make_shared<const Graph>(trial.graph), trial.mesh,
                              trial.options);
  std::vector<ShardedArray> inputs;
  for (std::size_t i = 0; i < trial.inputs.size(); ++i) {
    inputs.push_back(ShardedArray::from_host(devices, executable.input_spec(i), trial.inputs[i]));
  }
  return executable.run(devices, std::move(inputs));
}

/// Runs the programs of seeds 1 to `last` in 2, 3 and 4 processes; gives how many there were. If
/// messages come in any order, each process has two workers.
int run_in_processes(std::uint32_t last, bool in_any_order = false) {
  int programs = 0;
  for (const int ranks : {2, 3, 4}) {
    for (std::uint32_t seed = 1; seed <= last; ++seed) {
      const Trial trial = random_trial(seed);
      const std::int64_t count = devices_of(trial.mesh);
      if (count < ranks) continue;
      ++programs;
      Devices alone(count, {.threads = 1});
      const std::vector<ShardedArray> needed = run_trial_on(alone, trial);
      const auto faults = [&](int rank) {
        const auto order = in_any_order ? seed * 8 + static_cast<std::uint32_t>(rank) : 0;
        return SocketFaults{.reorder_seed = order};
      };
      const auto errors = run_ranks(ranks, faults, [&](std::shared_ptr<SocketTransport> transport) {
        Devices devices(
            count, {.threads = in_any_order ? 2 : 1, .group = ProcessGroup(std::move(transport))});
        const std::vector<ShardedArray> found = run_trial_on(devices, trial);
        for (std::size_t o = 0; o < found.size(); ++o) {
          if (!same_shards(found[o], needed[o])) {
            throw std::runtime_error(fmt::format("output {} differs", o));
          }
        }
      });
      EXPECT_THAT(errors, Each("")) << "seed " << seed << ", " << ranks << " ranks";
      if (::testing::Test::HasFailure()) return programs;
    }
  }
  return programs;
}

TEST(ProcessesRunPrograms, WithTheBitsOfOneProcess) { EXPECT_GT(run_in_processes(1200), 1000); }

TEST(ProcessesRunPrograms, WhoseMessagesComeInAnyOrder) {
  EXPECT_GT(run_in_processes(60, true), 30);
}

// Few enough for a build with a sanitizer, which would take minutes for all.
TEST(ProcessesRunPrograms, OfFewSeedsWithTheBitsOfOneProcess) {
  EXPECT_GT(run_in_processes(60), 30);
}

// The first process's shard of `late` waits until the second one has made its shard of `free`. In
// the second process, the sum of `late`, which needs the first one's, comes before that.
TEST(ProcessesRunPrograms, WhatNeedsNoMessageRunsBeforeOneThatHasNotCome) {
  std::latch is_made(1);
  const auto errors = run_ranks(2, {}, [&](std::shared_ptr<SocketTransport> transport) {
    Devices devices(
        2, {.threads = 1, .group = ProcessGroup(std::move(transport), std::chrono::minutes(2))});
    ManualRegion region(devices, Mesh::line(2));
    const ManualRegion::Output each{DType::f32, {2}, {{"devices"}}};
    const auto write = [](const LocalContext& local, float number) {
      std::memcpy(local.outputs[0].data, &number, sizeof number);
    };
    const auto late = region.map("late", {}, {each}, [&](const LocalContext& local) {
      if (local.position == 0) is_made.wait();
      write(local, local.position == 0 ? 3.0F : 4.0F);
    })[0];
    const auto all = region.all_gather(late, "devices", 0);
    region.map("free", {}, {each}, [&](const LocalContext& local) {
      if (local.position == 1) is_made.count_down();
      write(local, 1);
    });
    region.run();
    const ShardedArray found = region.output(all);
    const float needed[] = {3, 4};
    if (std::memcmp(found.shard(devices.group().rank()).data, needed, sizeof needed) != 0) {
      throw std::runtime_error("other values");
    }
  });
  EXPECT_THAT(errors, Each(""));
}

/// A chain of layers that each sum over the devices.
Trial with_sums() {
  Trial trial{.mesh = Mesh::line(3, "x")};
  NodeRef x{&trial.graph, append_input(trial.graph, {DType::f32, {6, 6}}, "x")};
  trial.graph.node(x.id).mark = PartitionSpec::parse("x,-");
  for (int layer = 0; layer < 3; ++layer) {
    x = broadcast(sum(x, 0), {6, 6}, {1}) + x;
    trial.graph.node(x.id).mark = PartitionSpec::parse("x,-");
  }
  trial.graph.outputs = {x.id};
  trial.inputs.emplace_back(36 * sizeof(float));
  return trial;
}

// A process that dies before any of its messages.
TEST(ProcessesRunPrograms, OneThatDiesEndsTheRunOnAll) {
  const Trial trial = with_sums();
  for (int dying = 0; dying < 3; ++dying) {
    std::int64_t messages = 0;
    for (std::int64_t stop = 0; stop <= messages; ++stop) {
      std::atomic<std::int64_t> sent = 0;
      std::function<void()> close;
      const auto faults = [&](int rank) {
        if (rank != dying || stop == 0) return SocketFaults{};
        return SocketFaults{.stop = stop, .stop_now = [&] { close(); }};
      };
      const auto errors = run_ranks(3, faults, [&](std::shared_ptr<SocketTransport> transport) {
        if (transport->rank() == dying) {
          close = [own = transport.get()] {
            own->close();
            throw std::runtime_error("stopped");
          };
        }
        Devices devices(3, {.threads = 1, .group = ProcessGroup(transport, kNever)});
        run_trial_on(devices, trial);
        if (transport->rank() == dying) sent = transport->sent();
      });
      if (stop == 0) {
        EXPECT_THAT(errors, Each(""));
        messages = sent;
        EXPECT_GE(messages, 4);
        continue;
      }
      // A rank that needed no later message has ended.
      int noticed = 0;
      for (int rank = 0; rank < 3; ++rank) {
        const std::string& error = errors[as_size(rank)];
        if (rank == dying || error.empty()) continue;
        ++noticed;
        EXPECT_THAT(error, HasSubstr(fmt::format("rank {}", dying))) << stop << ", rank " << rank;
      }
      EXPECT_GT(noticed, 0) << "message " << stop << " of rank " << dying;
    }
  }
}

TEST(ProcessesRunPrograms, AMessageThatDoesNotComeIsMissed) {
  const Trial trial = with_sums();
  const auto faults = [](int rank) { return SocketFaults{.lose = rank == 1 ? 4 : 0}; };
  std::latch ended(3);
  const auto errors = run_ranks(3, faults, [&](std::shared_ptr<SocketTransport> transport) {
    struct Ended {
      std::latch& all;
      ~Ended() { all.arrive_and_wait(); }
    } at_end{ended};
    const ProcessGroup group(transport, std::chrono::milliseconds(500));
    Devices devices(3, {.threads = 1, .group = group});
    run_trial_on(devices, trial);
  });
  EXPECT_THAT(errors, Each(HasSubstr("of 3 did not come within 0.5 s")));
}

/// Sums over a dim that is cut, in one branch two, and one more afterwards.
Graph with_a_cond() {
  GraphBuilder graph;
  const NodeRef x{&graph, append_input(graph, {DType::f32, {4, 4}}, "x")};
  graph.node(x.id).mark = PartitionSpec::parse("x,-");
  const NodeRef sums = cond(
      gt(sum(x), constant(x, {DType::f32, {}}, 0)),
      [&] {
        const NodeRef some = sum(x * 2.0, 0);
        return sum(broadcast(some, {4, 4}, {1}) * x, 0);
      },
      [&] { return sum(x, 0); });
  graph.outputs = {sums.id, sum(broadcast(sums, {4, 4}, {1}) + x, 0).id};
  return graph;
}

TEST(ProcessesRunPrograms, AProcessWithoutADeviceOfTheMeshFollowsACond) {
  for (const float number : {1.0F, -1.0F}) {
    Trial trial{.graph = with_a_cond(), .mesh = Mesh({{"x", 2}}, {1, 3})};
    trial.inputs.emplace_back(16 * sizeof(float));
    const std::vector<float> values(16, number);
    std::memcpy(trial.inputs[0].data(), values.data(), trial.inputs[0].size());
    Devices alone(4, {.threads = 1});
    const std::vector<ShardedArray> needed = run_trial_on(alone, trial);
    const auto errors = run_ranks(4, {}, [&](std::shared_ptr<SocketTransport> transport) {
      Devices devices(4, {.threads = 1, .group = ProcessGroup(std::move(transport))});
      for (int turn = 0; turn < 2; ++turn) {
        const std::vector<ShardedArray> found = run_trial_on(devices, trial);
        for (std::size_t o = 0; o < found.size(); ++o) {
          if (!same_shards(found[o], needed[o])) {
            throw std::runtime_error(fmt::format("output {} differs", o));
          }
        }
      }
    });
    EXPECT_THAT(errors, Each("")) << number;
  }
}

}  // namespace
}  // namespace shardwise
