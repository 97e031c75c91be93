#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "random_convolution.h"
#include "random_program.h"
#include "reference.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"
#include "trial.h"

namespace shardwise {
namespace {

/// A convolution of random shape and its two gradients, of small integers, with marks at random.
Trial random_trial_of_a_convolution(std::uint32_t seed) {
  RandomProgram random(seed);
  std::mt19937 numbers(seed);
  const RandomConvolution c = random_convolution(numbers);
  Trial trial{.seed = seed};
  constexpr std::array kDtypes{DType::f32, DType::f64, DType::i32, DType::i8};
  const DType dtype = kDtypes[seed % kDtypes.size()];
  Graph& graph = trial.graph;
  const NodeRef x{&graph, append_input(graph, {dtype, c.lhs}, "x")};
  const NodeRef w{&graph, append_input(graph, {dtype, c.rhs}, "w")};
  const NodeRef y = convolution(x, w, c.attributes);
  graph.outputs = {y.id};
  if (is_floating(dtype)) {
    for (const NodeId gradient : grad(graph, sum(y * y).id, std::vector<NodeId>{x.id, w.id})) {
      graph.outputs.push_back(gradient);
    }
  }
  trial.mesh = random.random_mesh();
  for (Node& node : graph.nodes) {
    if (random.below(3) == 0) node.mark = random.random_spec(trial.mesh, node.type.shape);
  }
  for (const Shape* const shape : {&c.lhs, &c.rhs}) {
    std::vector<std::byte> values(num_bytes(*shape, size_bytes(dtype)));
    for (std::size_t i = 0; i < as_size(num_elements(*shape)); ++i) {
      Scalar(static_cast<int>((i * 7 + seed) % 5) - 2)
          .write(dtype, values.data() + i * size_bytes(dtype));
    }
    trial.inputs.push_back(std::move(values));
  }
  return trial;
}

TEST(Convolution, OfRandomShapesIsThatOfOneDeviceAndOfTheReferenceOnAnyMesh) {
  int windows = 0;
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    const Trial trial = random_trial_of_a_convolution(seed);
    const Outcome one = run(on_one_device(trial)), found = run(trial);
    ASSERT_EQ(different_numbers(found, one), "") << found.dump;
    const std::vector<ReferenceTensor> reference = interpret(trial.graph, trial.inputs);
    for (std::size_t o = 0; o < trial.graph.outputs.size(); ++o) {
      const ShardedArray& output = one.outputs[o];
      ASSERT_EQ(
          difference(decode(output.dtype(), output.to_host()),
                     reference[as_size(trial.graph.outputs[o])].elements, 0, ZeroSign::ignored),
          "")
          << dump(trial.graph);
    }
    for (const PartitionedGraph::Value& value : found.partitioned.values) {
      windows += has_windows(value.cut);
    }
  }
  EXPECT_GT(windows, 60);
}

// A picture that is cut in space: each device gets a row of either neighbour, and no more.
TEST(Convolution, ExchangesHalosOnly) {
  Devices devices(4);
  Tracer tracer(devices, {.mesh = Mesh::line(4)});
  Tensor x = counting(tracer, {2, 3, 32, 16});
  mark_sharding(x, {{}, {}, {"devices"}, {}});
  const Tensor w = counting(tracer, {5, 3, 3, 3}, "w");
  const Tensor y = convolution(x, w,
                               {.lhs = {0, 1, 2, 3},
                                .rhs = {0, 1, 2, 3},
                                .out = {0, 1, 2, 3},
                                .stride = {1, 1},
                                .low = {1, 1},
                                .high = {1, 1},
                                .lhs_dilation = {1, 1},
                                .rhs_dilation = {1, 1}});
  tracer.mark_step();
  std::size_t wire = 0;
  for (const CollectiveTotal& total : tracer.last()->collectives()) wire += total.wire_bytes;
  EXPECT_EQ(wire, 2U * 2 * 3 * 16 * 4) << tracer.last()->dump_steps();
  EXPECT_EQ(y.array().sharding().spec(), PartitionSpec::parse("-,-,devices,-"));
}

}  // namespace
}  // namespace shardwise
