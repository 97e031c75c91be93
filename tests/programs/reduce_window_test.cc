#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "random_convolution.h"
#include "random_program.h"
#include "reference.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"
#include "testing/errors.h"
#include "trial.h"

namespace shardwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

/// Sums and maxima of windows of a random shape, and their gradients, of small integers, with marks
/// at random.
Trial random_trial_of_windows(std::uint32_t seed) {
  RandomProgram random(seed);
  std::mt19937 numbers(seed);
  Shape shape;
  for (int rank = 1 + random.below(4); rank > 0; --rank) shape.push_back(1 + random.below(9));
  const WindowAttributes a = random_windows(numbers, shape);
  Trial trial{.seed = seed};
  constexpr std::array kDtypes{DType::f32, DType::f64, DType::i32, DType::i8};
  const DType dtype = kDtypes[seed % kDtypes.size()];
  GraphBuilder& graph = trial.graph;
  const NodeRef x{&graph, append_input(graph, {dtype, shape}, "x")};
  const NodeRef sums = reduce_window_sum(x, a), maxima = reduce_window_max(x, a);
  graph.outputs = {sums.id, maxima.id, select_and_scatter_add(x, sums, a).id};
  if (is_floating(dtype)) {
    const NodeRef loss = sum(sums * sums) + sum(maxima * sums);
    graph.outputs.push_back(grad(graph, loss.id, std::vector<NodeId>{x.id})[0]);
  }
  trial.mesh = random.random_mesh();
  for (Node& node : graph.nodes) {
    if (random.below(3) == 0) node.mark = random.random_spec(trial.mesh, node.type.shape);
  }
  std::vector<std::byte> values(num_bytes(shape, size_bytes(dtype)));
  for (std::size_t i = 0; i < as_size(num_elements(shape)); ++i) {
    Scalar(static_cast<int>((i * 7 + seed) % 5) - 2)
        .write(dtype, values.data() + i * size_bytes(dtype));
  }
  trial.inputs.push_back(std::move(values));
  return trial;
}

TEST(ReduceWindow, OfRandomShapesIsThatOfOneDeviceAndOfTheReferenceOnAnyMesh) {
  int windows = 0;
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(seed);
    const Trial trial = random_trial_of_windows(seed);
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
  EXPECT_GT(windows, 100);
}

std::size_t wire_bytes(const Tracer& tracer) {
  std::size_t wire = 0;
  for (const CollectiveTotal& total : tracer.last()->collectives()) wire += total.wire_bytes;
  return wire;
}

// Each of 4 devices has 8 rows of 16; windows of 3 need a row from either neighbour.
TEST(ReduceWindow, ExchangesHalosOnly) {
  for (const Op op : {Op::reduce_window_sum, Op::reduce_window_max}) {
    Devices devices(4);
    Tracer tracer(devices, {.mesh = Mesh::line(4)});
    Tensor x = counting(tracer, {2, 3, 32, 16});
    mark_sharding(x, {{}, {}, {"devices"}, {}});
    const Tensor y = append_to(x, op, {x},
                               WindowAttributes{.window = {1, 1, 3, 3},
                                                .stride = {1, 1, 1, 1},
                                                .low = {0, 0, 1, 1},
                                                .high = {0, 0, 1, 1},
                                                .dilation = {1, 1, 1, 1}});
    tracer.mark_step();
    EXPECT_EQ(wire_bytes(tracer), 2U * 2 * 3 * 16 * 4) << dump_steps(*tracer.last());
    EXPECT_EQ(y.array().sharding().spec(), PartitionSpec::parse("-,-,devices,-"));
  }
}

// Windows that do not go over the border of a shard move nothing forward; the gradient of the
// maximum looks at one row of either neighbour.
TEST(ReduceWindow, OfWindowsInsideShardsMovesNothing) {
  Devices devices(4);
  Tracer tracer(devices, {.mesh = Mesh::line(4)});
  Tensor x = counting(tracer, {2, 3, 32, 16});
  mark_sharding(x, {{}, {}, {"devices"}, {}});
  const WindowAttributes a{.window = {1, 1, 2, 2},
                           .stride = {1, 1, 2, 2},
                           .low = {0, 0, 0, 0},
                           .high = {0, 0, 0, 0},
                           .dilation = {1, 1, 1, 1}};
  const Tensor y = reduce_window_max(x, a), z = reduce_window_sum(x, a);
  tracer.mark_step();
  EXPECT_EQ(wire_bytes(tracer), 0U) << dump_steps(*tracer.last());
}

// The first of equal ones gets all, as in JAX; the first NaN, which is the largest.
TEST(ReduceWindow, GivesTheGradientToTheFirstLargest) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  Devices devices(2);
  Tracer tracer(devices, {.mesh = Mesh::line(2)});
  const std::vector<double> values{1, 3, 3, 2, kNan, 1};
  Tensor x = tracer.tensor({DType::f64, {6}}, std::as_bytes(std::span(values)), "x");
  const WindowAttributes a{.window = {2}, .stride = {1}, .low = {1}, .high = {1}, .dilation = {1}};
  const Tensor y = reduce_window_max(x, a);
  const Tensor gradient = grad(sum(y), {x})[0];
  tracer.mark_step();
  EXPECT_THAT(gradient.array().to_vector<double>(), ElementsAre(1, 2, 1, 0, 2, 1));
}

TEST(ReduceWindow, RefusesWhatDoesNotFit) {
  GraphBuilder graph;
  const NodeRef x{&graph, append_input(graph, {DType::f32, {4, 6}}, "x")};
  const NodeRef flags{&graph, append_input(graph, {DType::boolean, {4}}, "flags")};
  const WindowAttributes fits{
      .window = {1, 3}, .stride = {1, 2}, .low = {0, 1}, .high = {0, 1}, .dilation = {1, 1}};
  const auto refused = [&](auto change) {
    WindowAttributes a = fits;
    change(a);
    return message_of(ErrorCode::invalid_argument, [&] { reduce_window_max(x, a); });
  };
  EXPECT_THAT(refused([](WindowAttributes& a) { a.window = {3}; }),
              HasSubstr("found extents of the window [3], needed 2 numbers of at least 1"));
  EXPECT_THAT(refused([](WindowAttributes& a) { a.window[1] = 0; }),
              HasSubstr("found extents of the window [1, 0]"));
  EXPECT_THAT(refused([](WindowAttributes& a) { a.stride[0] = 0; }),
              HasSubstr("found strides [0, 2]"));
  EXPECT_THAT(refused([](WindowAttributes& a) { a.dilation[1] = INT64_MAX; }),
              HasSubstr("needed an extent below 2^63"));
  EXPECT_THAT(refused([](WindowAttributes& a) { a.high[1] = INT64_MAX; }),
              HasSubstr("needed an extent below 2^63"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { select_and_scatter_add(x, x, fits); }),
              HasSubstr("found a source of shape [4, 6], needed [4, 3]"));
  const WindowAttributes line{
      .window = {2}, .stride = {1}, .low = {0}, .high = {0}, .dilation = {1}};
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { reduce_window_sum(flags, line); }),
              HasSubstr("found bool, needed numbers"));
  const NodeRef maxima = reduce_window_max(x, fits);
  const NodeRef once{&graph, grad(graph, sum(maxima * maxima).id, std::vector<NodeId>{x.id})[0]};
  EXPECT_THAT(message_of(ErrorCode::unsupported,
                         [&] { grad(graph, sum(once).id, std::vector<NodeId>{x.id}); }),
              HasSubstr("a maximum of windows is derived once"));
}

}  // namespace
}  // namespace shardwise
