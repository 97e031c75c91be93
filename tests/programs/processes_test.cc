#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "shardwise/runtime/ops/control.h"
#include "shardwise/runtime/ops/functions.h"
#include "testing/same_shards.h"
#include "testing/socket_transport.h"
#include "trial.h"

// Programs over devices of several processes, which are threads here.
namespace shardwise {
namespace {

using testing::Each;

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

/// Runs the programs of seeds 1 to `last` in 2, 3 and 4 processes; gives how many there were.
int run_in_processes(std::uint32_t last) {
  int programs = 0;
  for (const int ranks : {2, 3, 4}) {
    for (std::uint32_t seed = 1; seed <= last; ++seed) {
      const Trial trial = random_trial(seed);
      const std::int64_t count = devices_of(trial.mesh);
      if (count < ranks) continue;
      ++programs;
      Devices alone(count, {.threads = 1});
      const std::vector<ShardedArray> needed = run_trial_on(alone, trial);
      const auto errors = run_ranks(ranks, {}, [&](std::shared_ptr<SocketTransport> transport) {
        Devices devices(count, {.threads = 1, .group = ProcessGroup(std::move(transport))});
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

// Few enough for a build with a sanitizer, which would take minutes for all.
TEST(ProcessesRunPrograms, OfFewSeedsWithTheBitsOfOneProcess) {
  EXPECT_GT(run_in_processes(60), 30);
}

/// Sums over a dim that is cut, in one branch two, and one more afterwards.
Graph with_a_cond() {
  Graph graph;
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
