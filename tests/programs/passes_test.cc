#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "shardwise/runtime/ops/build.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/spmd/detail/partition.h"
#include "shardwise/runtime/spmd/detail/propagate.h"

// The passes of the compiler one by one: a graph goes in, cuts, bytes or counts of work come out.

namespace shardwise {
namespace {

/// A graph that is being built.
struct Builder {
  GraphBuilder graph = {};

  NodeRef input(const Shape& shape, MemoryKind kind, const PartitionSpec& mark = {},
                DType dtype = DType::f32) {
    const NodeRef node{&graph, append_input(graph, {dtype, shape}, "input", kind)};
    if (mark.rank() > 0) graph.node(node.id).mark = mark;
    return node;
  }
};

std::string cut(const Propagation& propagation, const Mesh& mesh, const NodeRef& node) {
  return to_spec(propagation.cuts[as_size(node.id)], mesh).to_string();
}

/// Ids of a batch that is cut, in a table whose width is cut over the same axis: the batch is
/// heard, though the table is larger.
TEST(Propagate, ABatchIsNotOutvotedByATableThatIsCutOverItsAxis) {
  const Mesh mesh = Mesh::parse("data=8");
  Builder b;
  const NodeRef table = b.input({4096, 64}, MemoryKind::parameter, {{}, {"data"}});
  const NodeRef ids = b.input({16, 32}, MemoryKind::loader, {{"data"}, {}}, DType::i32);
  const NodeRef looked = take(table, ids, 0);
  const NodeRef scale = b.input({64}, MemoryKind::parameter, {{"data"}});
  const NodeRef scaled = looked * broadcast(scale, {16, 32, 64}, {2});
  const Propagation propagation = propagate(b.graph, mesh);
  EXPECT_EQ(cut(propagation, mesh, looked), "data,-,-");
  EXPECT_EQ(cut(propagation, mesh, scaled), "data,-,-");
}

/// As x[..., None] is written: the batch is heard through it as soon as through a reshape.
TEST(Propagate, ABroadcastThatRepeatsNothingPassesACutOn) {
  const Mesh mesh = Mesh::parse("data=8");
  Builder b;
  const NodeRef ids = b.input({16, 32}, MemoryKind::loader, {{"data"}, {}}, DType::i32);
  const NodeRef column = broadcast(ids, {16, 32, 1}, {0, 1});
  const NodeRef table = b.input({96, 64}, MemoryKind::parameter, {{}, {"data"}});
  const NodeRef looked = take(table, reshape(column, {16, 32}), 0);
  const NodeRef repeated = broadcast(ids, {16, 32, 4}, {0, 1});
  const Propagation propagation = propagate(b.graph, mesh);
  EXPECT_EQ(cut(propagation, mesh, column), "data,-,-");
  EXPECT_EQ(cut(propagation, mesh, looked), "data,-,-");
  EXPECT_EQ(cut(propagation, mesh, repeated), "data,-,-");
}

/// A weight that is larger than a small batch and its product keeps its cut: to gather the batch
/// moves less.
TEST(Propagate, ALargeWeightOutvotesASmallBatchInAProduct) {
  const Mesh mesh = Mesh::parse("data=8");
  Builder b;
  const NodeRef x = b.input({64, 256}, MemoryKind::loader, {{"data"}, {}});
  const NodeRef w = b.input({256, 512}, MemoryKind::parameter, {{}, {"data"}});
  const NodeRef y = einsum("bi,io->bo", x, w);
  EXPECT_EQ(cut(propagate(b.graph, mesh), mesh, y), "-,data");
}

/// A chain of tanh, marked at its start or at its end.
std::int64_t visits_of_chain(std::int64_t nodes, bool marked_at_end) {
  Builder b;
  NodeRef x = b.input({64, 32}, MemoryKind::array);
  const NodeRef first = x;
  for (std::int64_t i = 0; i < nodes; ++i) x = tanh(x);
  b.graph.node((marked_at_end ? x : first).id).mark = PartitionSpec{{"data"}, {}};
  const Mesh mesh = Mesh::parse("data=4");
  const Propagation propagation = propagate(b.graph, mesh);
  EXPECT_EQ(cut(propagation, mesh, marked_at_end ? first : x), "data,-");
  return propagation.visits;
}

TEST(Propagate, TheWorkGrowsAsTheGraphDoes) {
  for (const bool marked_at_end : {false, true}) {
    const std::int64_t few = visits_of_chain(1000, marked_at_end);
    EXPECT_LT(few, 10 * 1000);
    EXPECT_LE(visits_of_chain(4000, marked_at_end), 5 * few);
    EXPECT_LE(visits_of_chain(16000, marked_at_end), 20 * few);
  }
}

std::size_t wire_bytes(const Graph& graph, const Mesh& mesh) {
  const Propagation propagation = propagate(graph, mesh);
  std::vector<Cut> inputs;
  for (const GraphInput& input : graph.inputs) {
    inputs.push_back(propagation.cuts[as_size(input.node)]);
  }
  std::size_t bytes = 0;
  for (const auto& step : partition(graph, mesh, propagation, inputs, {}).steps) {
    const auto* const move = std::get_if<PartitionedGraph::Move>(&step);
    if (move != nullptr) bytes += move->wire_bytes;
  }
  return bytes;
}

/// The gradients of the weights of four gates, made at each step in time by one product, cut apart
/// and added up from zeros, as a scan does. All are combined once, at the end.
TEST(Partition, SumsOverStepsInTimeAreCombinedOnce) {
  constexpr std::int64_t kSteps = 12, kBatch = 16, kWidth = 24, kGate = 32;
  const Mesh mesh = Mesh::parse("data=8");
  Builder b;
  std::vector<NodeRef> sums;
  for (std::int64_t step = 0; step < kSteps; ++step) {
    const NodeRef x = b.input({kBatch, kWidth}, MemoryKind::loader, {{"data"}, {}});
    const NodeRef dy = b.input({kBatch, 4 * kGate}, MemoryKind::loader, {{"data"}, {}});
    const NodeRef all = transpose(einsum("bo,bi->oi", dy, x), {1, 0});
    for (std::int64_t gate = 0; gate < 4; ++gate) {
      const NodeRef one = slice(all, {0, gate * kGate}, {kWidth, (gate + 1) * kGate});
      if (step == 0) sums.push_back(full_like(one, 0));
      sums[as_size(gate)] = sums[as_size(gate)] + one;
    }
  }
  for (const NodeRef& sum : sums) b.graph.outputs.push_back(sum.id);
  EXPECT_EQ(wire_bytes(b.graph, mesh), 2 * 7 * (kWidth * 4 * kGate * sizeof(float)) / 8);
}

/// A product is combined at once if two users need the whole.
TEST(Partition, WhatIsUsedTwiceIsCombinedBeforeIt) {
  const Mesh mesh = Mesh::parse("data=8");
  Builder b;
  const NodeRef x = b.input({16, 24}, MemoryKind::loader, {{"data"}, {}});
  const NodeRef dy = b.input({16, 32}, MemoryKind::loader, {{"data"}, {}});
  const NodeRef product = einsum("bo,bi->oi", dy, x);
  b.graph.outputs = {neg(product).id, reverse(product, {0}).id};
  EXPECT_LE(wire_bytes(b.graph, mesh), 2u * 7 * (24 * 32 * sizeof(float)) / 8);
}

// A weight gets a new mark, and so does its replacement; a result keeps a mark of its own.
TEST(MarkInputs, MarksWhatReplacesAWeightToo) {
  Graph graph = parse_graph(R"(
      %0 = input() "w1" : f32[8, 4] marked -,- kind=parameter
      %1 = input() "w2" : f32[8, 4] kind=parameter
      %2 = input() "x" : f32[8, 4]
      %3 = sub(%0, %2) : f32[8, 4] marked -,-
      %4 = sub(%1, %2) : f32[8, 4] marked -,data
      %5 = add(%2, %2) : f32[8, 4]
      return %3 %4 %5
  )");
  const std::optional<PartitionSpec> marks[] = {PartitionSpec{"data", {}},
                                                PartitionSpec{"data", {}}, std::nullopt};
  mark_inputs(graph, marks);
  EXPECT_EQ(dump(graph),
            "%0 = input() \"w1\" : f32[8, 4] marked data,- kind=parameter\n"
            "%1 = input() \"w2\" : f32[8, 4] marked data,- kind=parameter\n"
            "%2 = input() \"x\" : f32[8, 4]\n"
            "%3 = sub(%0, %2) : f32[8, 4] marked data,-\n"
            "%4 = sub(%1, %2) : f32[8, 4] marked -,data\n"
            "%5 = add(%2, %2) : f32[8, 4]\n"
            "return %3 %4 %5\n");
}

}  // namespace
}  // namespace shardwise
