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

/// A convolution and its two gradients, of small integers, with marks at random.
Trial trial_of(const RandomConvolution& c, std::uint32_t seed) {
  RandomProgram random(seed);
  Trial trial{.seed = seed};
  constexpr std::array kDtypes{DType::f32, DType::f64, DType::i32, DType::i8};
  const DType dtype = kDtypes[seed % kDtypes.size()];
  GraphBuilder& graph = trial.graph;
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

/// On its mesh, on one device, and in the reference.
Outcome run_everywhere(const Trial& trial) {
  const Outcome one = run(on_one_device(trial));
  Outcome found = run(trial);
  EXPECT_EQ(different_numbers(found, one), "") << found.dump;
  const std::vector<ReferenceTensor> reference = interpret(trial.graph, trial.inputs);
  for (std::size_t o = 0; o < trial.graph.outputs.size(); ++o) {
    const ShardedArray& output = one.outputs[o];
    EXPECT_EQ(difference(decode(output.dtype(), output.to_host()),
                         reference[as_size(trial.graph.outputs[o])].elements, 0, ZeroSign::ignored),
              "")
        << dump(trial.graph);
  }
  return found;
}

TEST(Convolution, OfRandomShapesIsThatOfOneDeviceAndOfTheReferenceOnAnyMesh) {
  int windows = 0;
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 numbers(seed);
    const Outcome found = run_everywhere(trial_of(random_convolution(numbers), seed));
    ASSERT_FALSE(HasFailure());
    for (const PartitionedGraph::Value& value : found.partitioned.values) {
      windows += has_windows(value.cut);
    }
  }
  EXPECT_GT(windows, 60);
}

// Tiles of patches have some thousand elements: these cases have several by columns, and by the
// summed dim, in each of the two orders in which a tile is filled.
TEST(Convolution, LargerThanATileIsThatOfTheReference) {
  struct Case {
    Shape lhs, rhs;
    Dims stride, low, high, lhs_dilation, rhs_dilation;
  };
  const std::vector<Case> cases = {
      {{1, 2, 700}, {2, 2, 300}, {1}, {40}, {90}, {1}, {1}},
      {{1, 1, 900}, {1, 1, 150}, {2}, {3}, {0}, {1}, {3}},
      {{1, 1, 600}, {2, 1, 100}, {3}, {-2}, {7}, {2}, {5}},
      {{1, 2, 1500}, {1, 2, 3}, {1}, {0}, {0}, {1}, {400}},  // taps far apart
      {{1, 1, 1500}, {1, 1, 4}, {400}, {0}, {0}, {1}, {1}},  // places far apart
      {{2, 1, 30, 40}, {2, 1, 9, 30}, {1, 2}, {4, 9}, {4, 20}, {1, 1}, {2, 1}},
      {{3, 2, 5, 7, 11}, {2, 2, 2, 3, 5}, {1, 1, 1}, {1, 1, 2}, {0, 1, 2}, {1, 2, 1}, {1, 1, 1}},
  };
  for (std::uint32_t number = 0; number < cases.size(); ++number) {
    for (std::uint32_t dtype = 0; dtype < 3; ++dtype) {
      SCOPED_TRACE(number);
      SCOPED_TRACE(dtype);
      const Case& c = cases[number];
      Dims order;
      for (std::int64_t d = 0; d < std::ssize(c.lhs); ++d) order.push_back(d);
      const ConvolutionAttributes a{.lhs = order,
                                    .rhs = order,
                                    .out = order,
                                    .stride = c.stride,
                                    .low = c.low,
                                    .high = c.high,
                                    .lhs_dilation = c.lhs_dilation,
                                    .rhs_dilation = c.rhs_dilation};
      run_everywhere(trial_of({a, c.lhs, c.rhs}, 4 * number + dtype));
    }
  }
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
  EXPECT_EQ(wire, 2U * 2 * 3 * 16 * 4) << dump_steps(*tracer.last());
  EXPECT_EQ(y.array().sharding().spec(), PartitionSpec::parse("-,-,devices,-"));
}

}  // namespace
}  // namespace shardwise
