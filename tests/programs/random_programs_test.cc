#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "random_program.h"
#include "reference.h"
#include "shardwise/runtime/spmd/executable.h"

namespace shardwise {
namespace {

using Numbers = std::vector<long double>;

/// A program, how it is to be run, and what it is given.
struct Trial {
  Graph graph;
  Mesh mesh = Mesh::line(1);
  CompileOptions options = {};
  std::vector<std::vector<std::byte>> inputs = {};
  int threads = 1;
  int runs = 1;
};

struct Outcome {
  std::vector<Numbers> outputs;
  std::string dump;
};

/// How often each op occurred in the programs that were run, and how many numbers were compared
/// with the reference.
std::array<std::int64_t, kOps> counts{};
std::int64_t compared = 0;

/// How often each op was computed on parts of a sum, and how often each kind of move occurred.
std::array<std::int64_t, kOps> on_parts{};
std::array<std::int64_t, 6> moves{};

void count(const Graph& graph, const PartitionedGraph& partitioned) {
  for (const PartitionedGraph::Step& step : partitioned.steps) {
    if (const auto* const move = std::get_if<PartitionedGraph::Move>(&step)) {
      ++moves[static_cast<std::size_t>(move->kind)];
      continue;
    }
    const auto& compute = std::get<PartitionedGraph::Compute>(step);
    for (const PartitionedGraph::ValueId operand : compute.operands) {
      if (partitioned.values[as_size(operand)].partial == 0) continue;
      ++on_parts[static_cast<std::size_t>(graph.node(compute.node).op)];
      break;
    }
  }
}

/// Runs the program, and checks that memory was planned to the byte.
Outcome run(const Trial& trial) {
  std::int64_t last = 0;
  for (std::int64_t p = 0; p < trial.mesh.size(); ++p) {
    last = std::max(last, trial.mesh.device_at(p));
  }
  Devices devices(last + 1, {.threads = trial.threads});
  const Executable executable(std::make_shared<const Graph>(trial.graph), trial.mesh,
                              trial.options);
  Outcome outcome;
  outcome.dump = trial.mesh.to_string() + '\n' +
                 dump(trial.graph, trial.mesh, executable.partitioned()) + executable.dump_plan();
  count(trial.graph, executable.partitioned());
  for (int turn = 0; turn < trial.runs; ++turn) {
    for (std::int64_t p = 0; p < trial.mesh.size(); ++p) {
      devices.at(trial.mesh.device_at(p)).reset_peak();
    }
    std::vector<ShardedArray> inputs;
    for (std::size_t i = 0; i < trial.inputs.size(); ++i) {
      inputs.push_back(ShardedArray::from_host(devices, executable.input_spec(i), trial.inputs[i]));
    }
    const std::vector<ShardedArray> outputs = executable.run(devices, std::move(inputs));
    outcome.outputs.clear();
    for (const ShardedArray& output : outputs) {
      outcome.outputs.push_back(decode(output.dtype(), output.to_host()));
    }
    for (std::int64_t p = 0; p < trial.mesh.size(); ++p) {
      const std::size_t measured = devices.at(trial.mesh.device_at(p)).memory().peak_bytes;
      EXPECT_EQ(executable.memory(p).peak_bytes, measured) << "position " << p << outcome.dump;
    }
  }
  return outcome;
}

/// The same program for one device.
Trial on_one_device(const Trial& trial) {
  Trial one{trial.graph};
  for (Node& node : one.graph.nodes) node.mark.reset();
  one.inputs = trial.inputs;
  return one;
}

/// What is wrong, if anything. The sign of a zero is no integer's: 0 + -0 is 0, and the larger of
/// both is either.
std::string problem(const Trial& trial) {
  try {
    const Outcome one = run(on_one_device(trial)), found = run(trial);
    const std::vector<ReferenceTensor> reference = interpret(trial.graph, trial.inputs);
    for (std::size_t o = 0; o < trial.graph.outputs.size(); ++o) {
      const std::string output = "output %" + std::to_string(trial.graph.outputs[o]) + ' ';
      const std::string text = difference(found.outputs[o], one.outputs[o], 0);
      if (!text.empty()) return output + text + '\n' + found.dump;
      const ReferenceTensor& expected = reference[as_size(trial.graph.outputs[o])];
      if (expected.inexact) continue;
      const std::string wrong = difference(one.outputs[o], expected.elements, 0);
      if (!wrong.empty()) return output + "on one device " + wrong + '\n' + dump(trial.graph);
      compared += static_cast<std::int64_t>(expected.elements.size());
    }
  } catch (const std::exception& error) {
    return error.what() + ('\n' + trial.mesh.to_string()) + '\n' + dump(trial.graph);
  }
  return "";
}

/// Fewer marks and outputs that still show what is wrong.
Trial shrink(Trial trial) {
  for (const NodeId output : std::vector<NodeId>(trial.graph.outputs)) {
    Trial one = trial;
    one.graph.outputs = {output};
    if (!problem(one).empty()) trial = std::move(one);
  }
  Trial plain = trial;
  plain.options = {};
  if (!problem(plain).empty()) trial = std::move(plain);
  for (std::size_t i = 0; i < trial.graph.nodes.size(); ++i) {
    if (!trial.graph.nodes[i].mark) continue;
    Trial fewer = trial;
    fewer.graph.nodes[i].mark.reset();
    if (!problem(fewer).empty()) trial = std::move(fewer);
  }
  return trial;
}

Trial make_trial(std::uint32_t seed) {
  RandomProgram program(seed);
  Trial trial;
  trial.mesh = program.random_mesh();
  program.mark(trial.mesh);
  trial.graph = program.graph;
  trial.threads = 1 << seed % 3;
  trial.runs = seed % 5 == 0 ? 2 : 1;
  trial.options.partition.keep_gathered_weights = program.below(2) == 0;
  for (const GraphInput& input : trial.graph.inputs) {
    const TensorType& type = trial.graph.node(input.node).type;
    trial.inputs.push_back(program.random_values(type));
    trial.options.may_donate.push_back(program.below(2) == 0);
    const bool cut_otherwise = program.below(4) == 0;
    trial.options.input_specs.push_back(
        cut_otherwise ? std::optional(program.random_spec(trial.mesh, type.shape)) : std::nullopt);
  }
  return trial;
}

void check_many(std::uint32_t first, std::uint32_t count) {
  for (std::uint32_t seed = first; seed < first + count; ++seed) {
    const Trial trial = make_trial(seed);
    if (!problem(trial).empty()) {
      FAIL() << "seed " << seed << ": " << problem(shrink(trial));
    }
    if (testing::Test::HasFailure()) return;
    for (const Node& node : trial.graph.nodes) ++counts[static_cast<std::size_t>(node.op)];
  }
}

TEST(RandomPrograms, GiveTheBitsOfOneDeviceAndOfTheReferenceOnAnyMesh) {
  check_many(1, 20'000);
  for (std::size_t op = 0; op < kOps; ++op) {
    const bool is_manual = op >= static_cast<std::size_t>(Op::enter_manual);
    EXPECT_TRUE(is_manual || counts[op] > 0) << name(static_cast<Op>(op)) << " never occurred";
  }
  EXPECT_GT(compared, 100'000);
  for (const Op op :
       {Op::neg, Op::identity, Op::stop_gradient, Op::optimization_barrier, Op::add, Op::sub,
        Op::mul, Op::transpose, Op::reshape, Op::slice, Op::pad, Op::reverse, Op::reduce_sum}) {
    EXPECT_GT(on_parts[static_cast<std::size_t>(op)], 10) << name(op) << " of parts of a sum";
  }
  for (std::size_t kind = 0; kind < moves.size(); ++kind) {
    EXPECT_GT(moves[kind], 100) << name(static_cast<CollectiveKind>(kind));
  }
}

TEST(RandomProgramsNightly, GiveTheBitsOfOneDeviceAndOfTheReferenceOnAnyMesh) {
  check_many(1'000'000, 200'000);
}

}  // namespace
}  // namespace shardwise
