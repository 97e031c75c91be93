#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "random_program.h"
#include "shardwise/runtime/spmd/executable.h"

namespace shardwise {
namespace {

using Bytes = std::vector<std::vector<std::byte>>;

struct Outcome {
  Bytes outputs;
  std::string dump;
};

/// The sign of a zero is no integer's: 0 + -0 is 0, and the larger of both is either.
std::vector<std::byte> without_negative_zeros(DType dtype, std::vector<std::byte> bytes) {
  const auto clean = [&]<class T>(T) {
    for (std::size_t at = 0; at < bytes.size(); at += sizeof(T)) {
      T value;
      std::memcpy(&value, bytes.data() + at, sizeof value);
      if (value == 0) std::memset(bytes.data() + at, 0, sizeof value);
    }
  };
  if (dtype == DType::f32) clean(0.0F);
  if (dtype == DType::f64) clean(0.0);
  return bytes;
}

/// Runs the graph on a mesh, and checks that memory was planned to the byte.
Outcome run_on(const Graph& graph, const Mesh& mesh, const std::vector<std::vector<float>>& values,
               int threads) {
  std::int64_t last = 0;
  for (std::int64_t p = 0; p < mesh.size(); ++p) last = std::max(last, mesh.device_at(p));
  Devices devices(last + 1, {.threads = threads});
  const Executable executable(std::make_shared<const Graph>(graph), mesh, {});
  std::vector<ShardedArray> inputs;
  for (std::size_t i = 0; i < values.size(); ++i) {
    inputs.push_back(ShardedArray::from_host(devices, executable.input_spec(i),
                                             std::as_bytes(std::span(values[i]))));
  }
  Outcome outcome;
  for (const ShardedArray& output : executable.run(devices, inputs)) {
    outcome.outputs.push_back(without_negative_zeros(output.dtype(), output.to_host()));
  }
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    EXPECT_EQ(executable.memory(p).peak_bytes, devices.at(mesh.device_at(p)).memory().peak_bytes)
        << "position " << p;
  }
  outcome.dump = dump(graph, mesh, executable.partitioned()) + executable.dump_plan();
  return outcome;
}

Graph without_marks(Graph graph) {
  for (Node& node : graph.nodes) node.mark.reset();
  return graph;
}

/// How often each op occurred in the programs that were run.
std::array<std::int64_t, kOps> counts{};

/// Runs two graphs that differ in marks and outputs at most; what is wrong, if anything.
std::string compare(const Graph& graph, const Mesh& mesh,
                    const std::vector<std::vector<float>>& values, int threads) {
  try {
    const Outcome expected = run_on(without_marks(graph), Mesh::line(1), values, 1);
    const Outcome found = run_on(graph, mesh, values, threads);
    for (std::size_t o = 0; o < graph.outputs.size(); ++o) {
      if (found.outputs[o] == expected.outputs[o]) continue;
      const std::size_t at =
          static_cast<std::size_t>(std::mismatch(found.outputs[o].begin(), found.outputs[o].end(),
                                                 expected.outputs[o].begin())
                                       .first -
                                   found.outputs[o].begin());
      return "output %" + std::to_string(graph.outputs[o]) + " differs at byte " +
             std::to_string(at) + '\n' + found.dump;
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// Fewer marks and outputs that still show what is wrong.
Graph shrink(Graph graph, const Mesh& mesh, const std::vector<std::vector<float>>& values,
             int threads) {
  for (const NodeId output : std::vector<NodeId>(graph.outputs)) {
    Graph one = graph;
    one.outputs = {output};
    if (!compare(one, mesh, values, threads).empty()) graph = std::move(one);
  }
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    if (!graph.nodes[i].mark) continue;
    Graph fewer = graph;
    fewer.nodes[i].mark.reset();
    if (!compare(fewer, mesh, values, threads).empty()) graph = std::move(fewer);
  }
  return graph;
}

void check(std::uint32_t seed) {
  RandomProgram program(seed);
  const Mesh mesh = program.random_mesh();
  std::vector<std::vector<float>> values;
  for (const GraphInput& input : program.graph.inputs) {
    values.push_back(
        program.random_values(num_elements(program.graph.node(input.node).type.shape)));
  }
  program.mark(mesh);
  const int threads = 1 + static_cast<int>(seed % 4);
  if (!compare(program.graph, mesh, values, threads).empty()) {
    const Graph small = shrink(program.graph, mesh, values, threads);
    FAIL() << "seed " << seed << ": " << compare(small, mesh, values, threads);
  }
  for (const Node& node : program.graph.nodes) ++counts[static_cast<std::size_t>(node.op)];
}

void check_many(std::uint32_t first, std::uint32_t count) {
  for (std::uint32_t seed = first; seed < first + count; ++seed) {
    check(seed);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(RandomPrograms, GiveTheBitsOfOneDeviceOnAnyMesh) {
  check_many(1, 20'000);
  for (std::size_t op = 0; op < kOps; ++op) {
    const bool is_manual = op >= static_cast<std::size_t>(Op::enter_manual);
    EXPECT_TRUE(is_manual || counts[op] > 0) << name(static_cast<Op>(op)) << " never occurred";
  }
}

TEST(RandomProgramsNightly, GiveTheBitsOfOneDeviceOnAnyMesh) { check_many(1'000'000, 100'000); }

}  // namespace
}  // namespace shardwise
