#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "model.h"
#include "plan.h"
#include "random_program.h"
#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/nn/optimizers.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"
#include "testing/errors.h"
#include "trial.h"

// Blocks of checkpoint(): recomputed nodes, equal numbers, and saved memory.

namespace shardwise {
namespace {

/// How many nodes of an op the graph has, and of them backward ones.
std::pair<int, int> count(const Graph& graph, Op op) {
  std::pair<int, int> found;
  for (const Node& node : graph.nodes) {
    if (node.op != op) continue;
    ++found.first;
    if (node.backward) ++found.second;
  }
  return found;
}

/// Gradients of sum(tanh(x w) * tanh(x w)); the block makes both factors.
Graph two_layers(const CheckpointPolicy& policy, bool in_block = true) {
  GraphBuilder graph;
  const NodeRef x{&graph, append_input(graph, {DType::f32, {4, 4}}, "x")};
  const NodeRef w{&graph, append_input(graph, {DType::f32, {4, 4}}, "w")};
  const auto body = [&](const NodeRef& h) {
    const NodeRef inner = tanh(checkpoint_name(einsum("bi,io->bo", h, w), "inner"));
    return sin(einsum("bi,io->bo", inner, w));
  };
  const NodeRef h = in_block ? checkpoint(body, x, policy) : body(x);
  const std::vector<NodeId> wrt{x.id, w.id};
  const NodeRef loss = reduce_sum(h * h, {0, 1});
  graph.outputs = grad(graph, loss.id, wrt);
  return graph;
}

TEST(Checkpoint, ComputesAgainWhatThePolicyDoesNotKeep) {
  using Counts = std::pair<int, int>;
  const Graph kept = two_layers({}, false);
  EXPECT_EQ(count(kept, Op::tanh), Counts(1, 0));
  EXPECT_EQ(count(kept, Op::dot_general), Counts(6, 4));  // each product has two gradients
  // sin's gradient needs the second product, tanh's its own value.
  const Graph nothing = two_layers({});
  EXPECT_EQ(count(nothing, Op::tanh), Counts(2, 1));
  EXPECT_EQ(count(nothing, Op::dot_general), Counts(8, 6));
  EXPECT_EQ(count(nothing, Op::sin), Counts(1, 0));  // the block's result is kept
  const Graph products = two_layers({.save_products = true});
  EXPECT_EQ(count(products, Op::tanh), Counts(2, 1));
  EXPECT_EQ(count(products, Op::dot_general), Counts(6, 4));
  const Graph named = two_layers({.save_names = {"other", "inner"}});
  EXPECT_EQ(count(named, Op::dot_general), Counts(7, 5));
  EXPECT_EQ(count(two_layers({.save_names = {"other"}}), Op::dot_general), Counts(8, 6));
}

TEST(Checkpoint, LeavesNoNodeOfAGradientThatNothingUses) {
  const Graph graph = two_layers({});
  std::vector<bool> is_used(graph.nodes.size());
  for (const NodeId id : graph.outputs) is_used[as_size(id)] = true;
  for (std::size_t id = graph.nodes.size(); id-- > 0;) {
    const Node& node = graph.nodes[id];
    EXPECT_TRUE(is_used[id] || !node.backward) << to_string(graph, static_cast<NodeId>(id));
    if (!is_used[id]) continue;
    for (const NodeId operand : node.operands) is_used[as_size(operand)] = true;
  }
}

TEST(Checkpoint, ABlockInABlockIsPartOfIt) {
  GraphBuilder graph;
  const NodeRef x{&graph, append_input(graph, {DType::f32, {4}}, "x")};
  const NodeRef h = checkpoint(
      [](const NodeRef& a) {
        const NodeRef b = checkpoint([](const NodeRef& inner) { return tanh(inner); }, a);
        return tanh(b);
      },
      x);
  EXPECT_EQ(graph.blocks, 1);
  graph.outputs = grad(graph, reduce_sum(tanh(h), {0}).id, std::vector<NodeId>{x.id});
  EXPECT_EQ(count(graph, Op::tanh), std::make_pair(4, 1));
}

TEST(Checkpoint, RandomProgramsGiveTheSameNumbers) {
  int with_blocks = 0;
  for (std::uint32_t seed = 5'000'000; seed < 5'000'600; ++seed) {
    RandomProgram program(seed), kept(seed, false);
    if (program.graph.blocks == 0) continue;
    ASSERT_EQ(kept.graph.blocks, 0);
    ++with_blocks;
    Trial trial{.seed = seed, .mesh = program.random_mesh()};
    for (const GraphInput& input : program.graph.inputs) {
      trial.inputs.push_back(program.random_values(program.graph.node(input.node).type));
    }
    trial.has_special_values = program.has_special_values();
    Trial expected = trial;
    program.mark(trial.mesh);
    trial.graph = program.graph;
    expected.graph = kept.graph;
    expected.mesh = Mesh::line(1);
    const std::string text = different_numbers(run(trial), run(expected));
    EXPECT_EQ(text, "") << "seed " << seed;
  }
  EXPECT_GT(with_blocks, 100);
}

struct Step {
  std::vector<double> losses;
  std::size_t peak_bytes = 0;
};

/// Two steps of the GPT of four layers; planned memory is compared with measured.
Step train(const std::string& mesh_text, const std::string& plan_name, gpt::Recompute recompute,
           double dropped = 0) {
  const Mesh mesh = Mesh::parse(mesh_text);
  const gpt::Plan plan(plan_name, mesh);
  const gpt::Sizes sizes{.layers = 4, .width = 64, .heads = 4, .context = 64, .batch = 16};
  const gpt::Recipe recipe{.dropout = dropped, .recompute = recompute};
  Devices devices(mesh.size());
  Tracer tracer(devices, {.mesh = mesh});
  std::vector<Tensor> weights;
  std::vector<std::string> names;
  for (const gpt::Weight& weight : gpt::weights(sizes, recipe)) {
    const TensorType type{DType::f32, weight.shape};
    names.push_back(weight.name);
    weights.push_back(weight.deviation == 0
                          ? full(tracer, type, weight.value, weight.name)
                          : normal(tracer, type, weight.deviation, names.size(), weight.name));
    mark_sharding(weights.back(), plan.weight(weight.name, weight.shape));
  }
  Step result;
  for (int step = 0; step < 2; ++step) {
    const Tensor loss = [&] {
      Tensor tokens = counting(tracer, {sizes.batch, sizes.context}, "tokens", MemoryKind::loader);
      mark_sharding(tokens, plan.batch());
      tokens = convert(tokens, DType::i32);
      const Tensor number = full(tracer, {DType::f32, {}}, step, "number");
      std::map<std::string, Tensor> by_name;
      for (std::size_t i = 0; i < names.size(); ++i) by_name.emplace(names[i], weights[i]);
      const Tensor mean = gpt::loss(tracer, sizes, recipe, by_name, number, tokens, tokens).mean;
      const std::vector<Tensor> gradients = grad(mean, weights);
      for (std::size_t i = 0; i < names.size(); ++i) weights[i] -= gradients[i] * 0.1;
      return mean;
    }();
    for (const DeviceId id : devices.addressable()) devices.at(id).reset_peak();
    tracer.mark_step();
    for (std::int64_t p = 0; p < mesh.size(); ++p) {
      EXPECT_EQ(tracer.last()->memory(p).peak_bytes, devices.at(p).memory().peak_bytes);
    }
    result.losses.push_back(loss.item());
    result.peak_bytes = tracer.last()->memory(0).peak_bytes;
  }
  return result;
}

TEST(Checkpoint, TheGptNeedsTwoFifthsLessMemoryAndItsLossIsTheSame) {
  const struct {
    const char *mesh, *plan;
  } cases[] = {{"", "none"}, {"data=4,model=2", "tensor"}, {"fsdp=8", "fsdp"}};
  for (const auto& [mesh, plan] : cases) {
    const Step kept = train(mesh, plan, gpt::Recompute::none);
    const Step all = train(mesh, plan, gpt::Recompute::all);
    EXPECT_EQ(all.losses, kept.losses) << mesh;
    EXPECT_LE(5 * all.peak_bytes, 3 * kept.peak_bytes) << mesh;
    const Step elementwise = train(mesh, plan, gpt::Recompute::elementwise);
    EXPECT_EQ(elementwise.losses, kept.losses) << mesh;
    EXPECT_LT(elementwise.peak_bytes, kept.peak_bytes) << mesh;
    EXPECT_GT(elementwise.peak_bytes, all.peak_bytes) << mesh;
    const Step inside = train(mesh, plan, gpt::Recompute::inside);
    EXPECT_EQ(inside.losses, kept.losses) << mesh;
    EXPECT_LT(inside.peak_bytes, elementwise.peak_bytes) << mesh;
  }
}

TEST(Checkpoint, WhatIsDroppedIsDroppedAgain) {
  const Step kept = train("data=2", "data", gpt::Recompute::none, 0.25);
  EXPECT_EQ(train("data=2", "data", gpt::Recompute::all, 0.25).losses, kept.losses);
  EXPECT_NE(train("data=2", "data", gpt::Recompute::none).losses, kept.losses);
}

TEST(Checkpoint, RefusesAStepInABlock) {
  Devices devices(1);
  Tracer tracer(devices);
  const Tensor x = counting(tracer, {3});
  const Tensor y = checkpoint(
      [&](const Tensor& a) {
        EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { tracer.mark_step(); }),
                  "run a step: found an open block of checkpoint(), needed to be "
                  "outside of it");
        return tanh(a);
      },
      x);
  tracer.mark_step();
  EXPECT_TRUE(y.has_value());
}

}  // namespace
}  // namespace shardwise
