#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "reference.h"
#include "trial.h"

namespace shardwise {
namespace {

/// How often each op occurred in the programs that were run, and how many numbers were compared
/// with the reference.
std::array<std::int64_t, kOps> counts{};
std::int64_t compared = 0;

/// How often each op was computed on parts of a sum, and how often each kind of move occurred.
std::array<std::int64_t, kOps> on_parts{};
std::array<std::int64_t, 7> moves{};

/// How many values were cut in tiles that are not the least ones: batches that are flattened.
std::int64_t in_tiles = 0;

/// How many nodes of gradients there were, and of these marked ones.
std::int64_t backward = 0, marked_backward = 0;

/// How many steps there were in bodies of scans.
std::int64_t in_bodies = 0;

void count(const Graph& graph, const PartitionedGraph& partitioned) {
  for (const PartitionedGraph::Value& value : partitioned.values) in_tiles += has_tiles(value.cut);
  for (const Node& node : graph.nodes) {
    backward += node.backward;
    marked_backward += node.backward && node.mark;
  }
  for (const PartitionedGraph::Step& step : partitioned.steps) {
    if (const auto* const move = std::get_if<PartitionedGraph::Move>(&step)) {
      ++moves[static_cast<std::size_t>(move->kind)];
      continue;
    }
    if (const auto* const loop = std::get_if<PartitionedGraph::Loop>(&step)) {
      for (const PartitionedBody* const body : {loop->body.get(), loop->otherwise.get()}) {
        if (body == nullptr) continue;
        in_bodies += std::ssize(body->partitioned.steps);
        count(*body->graph, body->partitioned);
      }
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

std::string differs_from_one_device_or_the_reference(const Trial& trial) {
  if (std::string lost = lost_in_text(trial.graph); !lost.empty()) return lost;
  const Outcome one = run(on_one_device(trial)), found = run(trial);
  count(trial.graph, found.partitioned);
  const ZeroSign zero_sign = trial.has_special_values ? ZeroSign::compared : ZeroSign::ignored;
  const std::string text = different_numbers(found, one, zero_sign);
  if (!text.empty()) return text;
  const std::vector<ReferenceTensor> reference = interpret(trial.graph, trial.inputs);
  for (std::size_t o = 0; o < trial.graph.outputs.size(); ++o) {
    const ReferenceTensor& expected = reference[as_size(trial.graph.outputs[o])];
    if (expected.inexact) continue;
    const ShardedArray& output = one.outputs[o];
    const std::string wrong =
        difference(decode(output.dtype(), output.to_host()), expected.elements, 0, zero_sign);
    if (!wrong.empty()) {
      return "output " + std::to_string(o) + " on one device " + wrong + '\n' + dump(trial.graph);
    }
    compared += static_cast<std::int64_t>(expected.elements.size());
  }
  return "";
}

void check_many(std::uint32_t first, std::uint32_t count) {
  check_trials(first, count, differs_from_one_device_or_the_reference, [](const Trial& trial) {
    for (const Node& node : trial.graph.nodes) ++counts[static_cast<std::size_t>(node.op)];
  });
}

TEST(RandomPrograms, GiveTheBitsOfOneDeviceAndOfTheReferenceOnAnyMesh) {
  check_many(1, 20'000);
  for (std::size_t op = 0; op < kOps; ++op) {
    const bool is_manual = op >= static_cast<std::size_t>(Op::enter_manual);
    EXPECT_TRUE(is_manual || counts[op] > 0) << name(static_cast<Op>(op)) << " never occurred";
  }
  EXPECT_GT(compared, 100'000);
  EXPECT_GT(in_tiles, 1000);
  EXPECT_GT(backward, 10'000);
  EXPECT_GT(marked_backward, 1000);
  EXPECT_GT(in_bodies, 10'000);
  for (const Op op :
       {Op::neg, Op::identity, Op::stop_gradient, Op::optimization_barrier, Op::add, Op::sub,
        Op::mul, Op::transpose, Op::reshape, Op::slice, Op::pad, Op::reverse, Op::reduce_sum}) {
    EXPECT_GT(on_parts[static_cast<std::size_t>(op)], 10) << name(op) << " of parts of a sum";
  }
  for (std::size_t kind = 0; kind < moves.size(); ++kind) {
    EXPECT_GT(moves[kind], 100) << name(static_cast<CollectiveKind>(kind));
  }
}

// Few enough for a build with a sanitizer, which would take minutes for all.
TEST(RandomPrograms, OfFewSeedsGiveTheBitsOfOneDeviceAndOfTheReference) { check_many(1, 300); }

TEST(RandomProgramsNightly, GiveTheBitsOfOneDeviceAndOfTheReferenceOnAnyMesh) {
  check_many(1'000'000, 200'000);
}

}  // namespace
}  // namespace shardwise
