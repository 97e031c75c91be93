#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "shardwise/runtime/nn/images.h"
#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/spmd/executable.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using testing::HasSubstr;

struct GradientCase {
  const char* name;
  std::vector<Shape> inputs;
  std::function<NodeRef(const std::vector<NodeRef>&)> result;
  double least = -2, most = 2;  ///< of the inputs' elements
};

NodeRef ids(const NodeRef& like, const Shape& shape, std::int64_t extent) {
  // 0, 2, 4, .. around the extent, so that some come twice.
  const NodeRef flat = iota(like, {DType::i32, {num_elements(shape)}}, 0) * 2.0;
  return reshape(rem(flat, full_like(flat, static_cast<double>(extent))), shape);
}

const std::vector<GradientCase>& gradient_cases() {
  using X = const std::vector<NodeRef>&;
  static const std::vector<GradientCase> all = {
      {"neg", {{3, 4}}, [](X x) { return neg(x[0]); }},
      {"abs", {{3, 4}}, [](X x) { return abs(x[0]); }},
      {"exp", {{3, 4}}, [](X x) { return exp(x[0]); }},
      {"log", {{3, 4}}, [](X x) { return log(x[0]); }, 0.5, 3},
      {"exp2", {{3, 4}}, [](X x) { return exp2(x[0]); }},
      {"expm1", {{3, 4}}, [](X x) { return expm1(x[0]); }},
      {"log1p", {{3, 4}}, [](X x) { return log1p(x[0]); }, -0.5, 3},
      {"erf_inv", {{3, 4}}, [](X x) { return erf_inv(x[0]); }, -0.9, 0.9},
      {"cbrt", {{3, 4}}, [](X x) { return cbrt(x[0]); }, 0.5, 3},
      {"atan2", {{3, 4}, {3, 4}}, [](X x) { return atan2(x[0], x[1]); }, 0.5, 3},
      {"clamp", {{3, 4}, {4}}, [](X x) { return clamp(-1.0, x[0], x[1] + 1.0); }},
      {"tanh", {{3, 4}}, [](X x) { return tanh(x[0]); }},
      {"logistic", {{3, 4}}, [](X x) { return logistic(x[0]); }},
      {"erf", {{3, 4}}, [](X x) { return erf(x[0]); }},
      {"sqrt", {{3, 4}}, [](X x) { return sqrt(x[0]); }, 0.5, 3},
      {"rsqrt", {{3, 4}}, [](X x) { return rsqrt(x[0]); }, 0.5, 3},
      {"sin", {{3, 4}}, [](X x) { return sin(x[0]); }},
      {"cos", {{3, 4}}, [](X x) { return cos(x[0]); }},
      {"sign", {{3, 4}}, [](X x) { return sign(x[0]); }},
      {"floor", {{3, 4}}, [](X x) { return floor(x[0]) + ceil(x[0]) + round(x[0]); }},
      {"convert",
       {{3, 4}},
       [](X x) { return convert(convert(x[0] * 2.0, DType::f64), DType::f64); }},
      {"identity", {{3, 4}}, [](X x) { return identity(optimization_barrier(x[0])) * x[0]; }},
      {"stop_gradient", {{3, 4}}, [](X x) { return x[0] + 0.0 * stop_gradient(x[0]); }},
      {"add", {{3, 4}, {3, 4}}, [](X x) { return x[0] + x[1]; }},
      {"add, broadcast", {{3, 4}, {4}}, [](X x) { return x[0] + x[1]; }},
      {"sub", {{3, 4}, {3, 1}}, [](X x) { return x[0] - x[1]; }},
      {"mul", {{3, 4}, {3, 4}}, [](X x) { return x[0] * x[1]; }},
      {"mul by itself", {{3, 4}}, [](X x) { return x[0] * x[0]; }},
      {"div", {{3, 4}, {3, 4}}, [](X x) { return x[0] / x[1]; }, 0.5, 3},
      {"rem", {{3, 4}, {3, 4}}, [](X x) { return rem(x[0] * 3.0, x[1]); }, 0.5, 3},
      {"max", {{3, 4}, {3, 4}}, [](X x) { return max(x[0], x[1]); }},
      {"min", {{3, 4}, {3, 4}}, [](X x) { return min(x[0], x[1]); }},
      {"pow", {{3, 4}, {3, 4}}, [](X x) { return pow(x[0], x[1]); }, 0.5, 2},
      {"select", {{3, 4}, {3, 4}}, [](X x) { return select(gt(x[0], x[1]), x[0], x[1] * 2.0); }},
      {"broadcast",
       {{3, 1}},
       [](X x) {
         return broadcast(x[0], {2, 3, 5}, {1, 2});
       }},
      {"transpose",
       {{2, 3, 4}},
       [](X x) {
         return transpose(x[0], {2, 0, 1});
       }},
      {"reshape",
       {{4, 6}},
       [](X x) {
         return reshape(x[0], {2, 2, 6});
       }},
      {"slice",
       {{7, 4}},
       [](X x) {
         return slice(x[0], {1, 0}, {6, 4}, {2, 1});
       }},
      {"pad",
       {{3, 4}},
       [](X x) {
         return pad(x[0], {1, 0}, {2, 1}, {2, 1}, 7);
       }},
      {"concatenate",
       {{2, 4}, {3, 4}},
       [](X x) {
         return concatenate<NodeRef>({x[0], x[1], x[0]}, 0);
       }},
      {"reverse",
       {{3, 4}},
       [](X x) {
         return reverse(x[0], {0, 1});
       }},
      {"reduce_sum",
       {{3, 4, 2}},
       [](X x) {
         return reduce_sum(x[0], {0, 2});
       }},
      {"reduce_max", {{3, 4, 2}}, [](X x) { return reduce_max(x[0], {1}); }},
      {"reduce_min",
       {{3, 4, 2}},
       [](X x) {
         return reduce_min(x[0], {0, 1, 2});
       }},
      {"cumsum", {{3, 4}}, [](X x) { return cumsum(x[0], 1); }},
      {"cumsum, reverse", {{3, 4}}, [](X x) { return cumsum(x[0], 1, true); }},
      {"cumprod", {{3, 5}}, [](X x) { return cumprod(x[0], 1); }},
      {"cumprod, reverse, with zeros",
       {{7, 2}},
       [](X x) {
         const NodeRef row = iota(x[0], x[0].type(), 0);
         return cumprod(x[0] * convert(ne(rem(row, 3.0), 1.0), DType::f64), 0, true);
       }},
      {"cummax", {{3, 6}}, [](X x) { return cummax(x[0], 1); }},
      {"cummax, reverse", {{3, 6}}, [](X x) { return cummax(x[0], 1, true); }},
      {"cummin", {{6, 3}}, [](X x) { return cummin(x[0], 0); }},
      {"cumlogsumexp", {{3, 6}}, [](X x) { return cumlogsumexp(x[0], 1); }},
      {"cumlogsumexp, reverse", {{5, 2}}, [](X x) { return cumlogsumexp(x[0] * 9.0, 0, true); }},
      {"reduce_prod",
       {{3, 4, 2}},
       [](X x) {
         return reduce_prod(x[0], {0, 2});
       }},
      {"reduce_prod with a zero",
       {{3, 4}},
       [](X x) {
         const NodeRef row = iota(x[0], x[0].type(), 0);
         return reduce_prod(x[0] * convert(ne(row, 1.0), DType::f64), {0});
       }},
      {"dot_general", {{3, 4}, {4, 5}}, [](X x) { return einsum("ij,jk->ik", x[0], x[1]); }},
      {"dot_general, batch",
       {{2, 3, 4}, {2, 5, 4}},
       [](X x) { return einsum("bij,bkj->kbi", x[0], x[1]); }},
      {"dot_general, outer", {{3}, {4}}, [](X x) { return einsum("i,j->ji", x[0], x[1]); }},
      {"convolution",
       {{2, 3, 5, 4}, {4, 3, 3, 2}},
       [](X x) {
         return convolution(x[0], x[1],
                            {.lhs = {0, 1, 2, 3},
                             .rhs = {0, 1, 2, 3},
                             .out = {0, 1, 2, 3},
                             .stride = {2, 1},
                             .low = {1, 0},
                             .high = {2, -1},
                             .lhs_dilation = {1, 2},
                             .rhs_dilation = {2, 1}});
       }},
      {"convolution, groups of features, channels last",
       {{2, 5, 4}, {3, 2, 6}},
       [](X x) {
         return convolution(x[0], x[1],
                            {.lhs = {0, 2, 1},
                             .rhs = {2, 1, 0},
                             .out = {0, 2, 1},
                             .stride = {1},
                             .low = {1},
                             .high = {1},
                             .lhs_dilation = {1},
                             .rhs_dilation = {1},
                             .feature_groups = 2});
       }},
      {"convolution, groups of images",
       {{4, 3, 5}, {2, 3, 2}},
       [](X x) {
         return convolution(x[0], x[1],
                            {.lhs = {0, 1, 2},
                             .rhs = {0, 1, 2},
                             .out = {0, 1, 2},
                             .stride = {2},
                             .low = {0},
                             .high = {2},
                             .lhs_dilation = {1},
                             .rhs_dilation = {1},
                             .batch_groups = 2});
       }},
      {"reduce_window_sum",
       {{2, 7, 5}},
       [](X x) {
         return reduce_window_sum(x[0], {.window = {1, 3, 2},
                                         .stride = {1, 2, 1},
                                         .low = {0, 1, -1},
                                         .high = {0, 2, 1},
                                         .dilation = {1, 2, 1}});
       }},
      {"reduce_window_max",
       {{2, 7, 5}},
       [](X x) {
         return reduce_window_max(x[0], {.window = {1, 3, 2},
                                         .stride = {1, 2, 1},
                                         .low = {0, 1, -1},
                                         .high = {0, 2, 1},
                                         .dilation = {1, 2, 1}});
       }},
      {"avg_pool",
       {{2, 7, 5}},
       [](X x) {
         return avg_pool(x[0], {1, 2}, {3, 2},
                         {.stride = {2, 1}, .low = {1, 1}, .count_include_pad = false});
       }},
      {"resize by thirds",
       {{2, 6, 3}},
       [](X x) {
         return resize(x[0], {1, 2}, {9, 2}, Interpolation::linear);
       }},
      {"resize, nearest",
       {{4, 3}},
       [](X x) {
         return resize(x[0], {0, 1}, {8, 2}, Interpolation::nearest);
       }},
      {"batchnorm",
       {{3, 2, 4}, {2}, {2}},
       [](X x) {
         const NodeRef zero = full_like(x[1], 0);
         return batchnorm(x[0], x[1], x[2], {zero, zero}).result;
       }},
      {"groupnorm", {{3, 4, 3}, {4}, {4}}, [](X x) { return groupnorm(x[0], x[1], x[2], 2); }},
      {"take",
       {{5, 3}},
       [](X x) {
         return take(x[0], ids(x[0], {2, 4}, 5), 0);
       }},
      {"take, inner dim", {{3, 5}}, [](X x) { return take(x[0], ids(x[0], {4}, 5), 1); }},
      {"scatter_add", {{4, 3}}, [](X x) { return scatter_add(ids(x[0], {4}, 5), x[0], 0, 5); }},
      {"scatter, set twice",
       {{5, 3}, {2, 4, 3}},
       [](X x) {
         return scatter(x[0], ids(x[0], {2, 4}, 5), x[1], 0);
       }},
      {"scatter, add, some outside",
       {{3, 5}, {3, 8}},
       [](X x) {
         const NodeRef outside = ids(x[0], {8}, 9) - 2.0;
         return scatter(x[0], outside, x[1], 1, Combination::add, OutOfRange::drop) +
                scatter(x[0], outside, x[1], 1, Combination::set, OutOfRange::clip);
       }},
      {"scatter, set, some outside",
       {{5}, {8}},
       [](X x) {
         const NodeRef outside = ids(x[0], {8}, 9) - 2.0;
         return scatter(x[0], outside, x[1], 0, Combination::set, OutOfRange::drop);
       }},
      {"take_or",
       {{5, 3}},
       [](X x) {
         const NodeRef outside = ids(x[0], {2, 4}, 9) - 2.0;
         return take_or(x[0], outside, 0, 7) + take_clipped(x[0], outside, 0);
       }},
      {"take_along",
       {{3, 5}},
       [](X x) {
         return take_along(x[0], ids(x[0], {3, 4}, 5), 1);
       }},
      {"take_along_or",
       {{3, 5}},
       [](X x) {
         const NodeRef outside = ids(x[0], {3, 4}, 9) - 2.0;
         return take_along_or(x[0], outside, 1, 7) + take_along_clipped(x[0], outside, 1);
       }},
      {"scatter_add_along",
       {{3, 4}},
       [](X x) {
         return scatter_add_along(ids(x[0], {3, 4}, 5), x[0], 1, 5);
       }},
      {"dynamic_slice",
       {{5, 4}},
       [](X x) {
         const NodeRef two = constant(x[0], {DType::i32, {}}, 2);
         return dynamic_slice(x[0], {two, two}, {2, 4});
       }},
      {"dynamic_update_slice",
       {{5, 4}, {2, 4}},
       [](X x) {
         const NodeRef nine = constant(x[0], {DType::i32, {}}, 9);
         return dynamic_update_slice(x[0], x[1], {nine, nine});
       }},
      {"sort", {{3, 5}}, [](X x) { return sort(x[0], 1).values; }},
      {"top_k", {{3, 5}}, [](X x) { return top_k(x[0], 1, 2).values; }},
  };
  return all;
}

/// The graph of sum(sin(weights) * result) and of its gradients, for a case.
struct GradientProgram {
  GraphBuilder graph;
  std::vector<std::vector<double>> values;
};

GradientProgram make_gradient(const GradientCase& c, std::mt19937& random) {
  GradientProgram program;
  std::vector<NodeRef> inputs;
  for (const Shape& shape : c.inputs) {
    inputs.push_back({&program.graph, append_input(program.graph, {DType::f64, shape}, "x")});
    std::uniform_real_distribution<double> uniform(c.least, c.most);
    std::vector<double>& values = program.values.emplace_back(as_size(num_elements(shape)));
    for (double& value : values) value = uniform(random);
  }
  const NodeRef result = c.result(inputs);
  const Shape shape = result.type().shape;
  NodeRef loss = result;
  if (!shape.empty()) {
    const NodeRef flat = reshape(result, {num_elements(shape)});
    const NodeRef weights = sin(iota(flat, flat.type(), 0) + 1.0);
    loss = reduce_sum(flat * weights, {0});
  }
  std::vector<NodeId> wrt;
  for (const NodeRef& input : inputs) wrt.push_back(input.id);
  program.graph.outputs = grad(program.graph, loss.id, wrt);
  program.graph.outputs.insert(program.graph.outputs.begin(), loss.id);
  return program;
}

std::vector<std::vector<double>> run_gradient(const GradientProgram& program, const Mesh& mesh) {
  Devices devices(mesh.size());
  const Executable executable(std::make_shared<const Graph>(program.graph), mesh, {});
  std::vector<ShardedArray> inputs;
  for (std::size_t i = 0; i < program.values.size(); ++i) {
    inputs.push_back(ShardedArray::from_host(devices, executable.input_spec(i),
                                             std::as_bytes(std::span(program.values[i]))));
  }
  std::vector<std::vector<double>> outputs;
  for (const ShardedArray& output : executable.run(devices, inputs)) {
    const std::vector<std::byte> bytes = output.to_host();
    const auto* const numbers = reinterpret_cast<const double*>(bytes.data());
    outputs.emplace_back(numbers, numbers + bytes.size() / sizeof(double));
  }
  return outputs;
}

TEST(Gradient, IsThatOfFiniteDifferences) {
  constexpr double kStep = 1e-6;
  std::mt19937 random(1);
  for (const GradientCase& c : gradient_cases()) {
    SCOPED_TRACE(c.name);
    GradientProgram program = make_gradient(c, random);
    const auto exact = run_gradient(program, Mesh::line(1));
    program.graph.outputs.resize(1);
    for (std::size_t i = 0; i < program.values.size(); ++i) {
      for (std::size_t at = 0; at < program.values[i].size(); ++at) {
        double& value = program.values[i][at];
        const double middle = value;
        value = middle + kStep;
        const double above = run_gradient(program, Mesh::line(1))[0][0];
        value = middle - kStep;
        const double below = run_gradient(program, Mesh::line(1))[0][0];
        value = middle;
        const double slope = (above - below) / (2 * kStep);
        EXPECT_NEAR(exact[1 + i][at], slope, 1e-6 * (1 + std::abs(slope)))
            << "input " << i << " element " << at;
      }
    }
  }
}

TEST(Gradient, IsTheSameOnAnyMesh) {
  std::mt19937 random(2);
  const auto random_spec = [&](const Mesh& mesh, std::size_t rank) {
    std::vector<PartitionSpec::Entry> entries(rank);
    for (const Axis& axis : mesh.axes()) {
      if (rank > 0 && random() % 3 != 0) entries[random() % rank].push_back(axis.name);
    }
    return PartitionSpec(std::move(entries));
  };
  for (const char* const text : {"x=2", "x=3", "x=2,y=2", "x=4,y=2", "x=2,y=3"}) {
    const Mesh mesh = Mesh::parse(text);
    for (const GradientCase& c : gradient_cases()) {
      for (int trial = 0; trial < 3; ++trial) {
        SCOPED_TRACE(std::string(c.name) + " on " + text);
        GradientProgram program = make_gradient(c, random);
        const auto expected = run_gradient(program, Mesh::line(1));
        for (Node& node : program.graph.nodes) {
          if (random() % 3 == 0) node.mark = random_spec(mesh, node.type.shape.size());
        }
        const auto found = run_gradient(program, mesh);
        ASSERT_EQ(found.size(), expected.size());
        for (std::size_t o = 0; o < found.size(); ++o) {
          ASSERT_EQ(found[o].size(), expected[o].size());
          for (std::size_t i = 0; i < found[o].size(); ++i) {
            ASSERT_NEAR(found[o][i], expected[o][i], 1e-12 * (1 + std::abs(expected[o][i])))
                << dump(program.graph);
          }
        }
      }
    }
  }
}

/// Ties are shared, 0 to a power is flat, as in JAX.
TEST(Gradient, AtTiesAndEdges) {
  const auto gradient_at = [](const std::function<NodeRef(const std::vector<NodeRef>&)>& f,
                              std::vector<double> at) {
    GradientProgram program;
    const Shape shape{static_cast<std::int64_t>(at.size())};
    const NodeRef x{&program.graph, append_input(program.graph, {DType::f64, shape}, "x")};
    const NodeRef result = f({x});
    const NodeRef loss = result.type().shape.empty() ? result : reduce_sum(result, {0});
    program.graph.outputs = grad(program.graph, loss.id, std::vector<NodeId>{x.id});
    program.values = {std::move(at)};
    return run_gradient(program, Mesh::line(1))[0];
  };
  using X = const std::vector<NodeRef>&;
  using testing::ElementsAre;
  EXPECT_THAT(gradient_at([](X x) { return max(x[0], full_like(x[0], 0)); }, {-1, 0, 2}),
              ElementsAre(0, 0.5, 1));
  EXPECT_THAT(gradient_at([](X x) { return abs(x[0]); }, {-1, 0, 2}), ElementsAre(-1, 0, 1));
  EXPECT_THAT(gradient_at([](X x) { return reduce_max(x[0], {0}); }, {2, 1, 2}),
              ElementsAre(0.5, 0, 0.5));
  EXPECT_THAT(gradient_at([](X x) { return pow(x[0], full_like(x[0], 2)); }, {0, 3}),
              ElementsAre(0, 6));
  EXPECT_THAT(gradient_at([](X x) { return full_like(x[0], 3); }, {1, 2}), ElementsAre(0, 0));
}

// bf16 times bf16 in f32, where 257 is a number that bf16 has not: it is in the gradient of the
// result, and what goes back to the operands is rounded to their dtype.
TEST(Gradient, OfAProductInAWiderDtype) {
  GradientProgram program;
  const NodeRef x{&program.graph, append_input(program.graph, {DType::f64, {2}}, "x")};
  const NodeRef narrow = convert(x, DType::bf16);
  const NodeRef product = einsum("i,i->i", narrow, full_like(narrow, 3), DType::f32);
  EXPECT_EQ(product.type(), (TensorType{DType::f32, {2}}));
  const NodeRef loss = reduce_sum(product * 257.0, {0});
  program.graph.outputs = {convert(product, DType::f64).id,
                           grad(program.graph, loss.id, std::vector<NodeId>{x.id})[0]};
  program.values = {{200, 129}};
  const auto found = run_gradient(program, Mesh::line(1));
  EXPECT_THAT(found[0], testing::ElementsAre(600, 387));
  EXPECT_THAT(found[1], testing::ElementsAre(772, 772));  // 771 in bf16
  const NodeRef flags{&program.graph, append_input(program.graph, {DType::i8, {2}}, "flags")};
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument, [&] { einsum("i,i->i", flags, flags, DType::f32); }),
      HasSubstr("found f32 for a product of i8, needed a wider dtype of the same kind"));
}

/// No op is left out of the cases but those without a gradient, and those with bodies
/// (scan_test.cc).
TEST(Gradient, EveryOpHasACase) {
  std::mt19937 random(3);
  std::set<Op> seen;
  for (const GradientCase& c : gradient_cases()) {
    for (const Node& node : make_gradient(c, random).graph.nodes) seen.insert(node.op);
  }
  const std::set<Op> none = {Op::literal,
                             Op::population_count,
                             Op::bitcast,
                             Op::shift_left,
                             Op::shift_right_logical,
                             Op::shift_right_arithmetic,
                             Op::is_finite,
                             Op::logical_not,
                             Op::logical_and,
                             Op::logical_or,
                             Op::logical_xor,
                             Op::index_of,
                             Op::decompose,
                             Op::triangular_solve,
                             Op::random_bits,
                             Op::ne,
                             Op::lt,
                             Op::le,
                             Op::ge,
                             Op::scan,
                             Op::cond,
                             Op::result,
                             Op::enter_manual,
                             Op::leave_manual,
                             Op::manual_all_reduce};
  for (std::size_t i = 0; i < kOps; ++i) {
    const Op op = static_cast<Op>(i);
    EXPECT_TRUE(seen.count(op) + none.count(op) > 0) << name(op);
  }
}

TEST(Gradient, RefusesWhatHasNone) {
  GraphBuilder graph;
  const NodeRef table{&graph, append_input(graph, {DType::f32, {4, 2}}, "table")};
  const NodeRef rows{&graph, append_input(graph, {DType::f32, {3, 2}}, "rows")};
  const NodeRef at = iota(table, {DType::i32, {3}}, 0);
  const NodeRef most = scatter(table, at, rows, 0, Combination::max, OutOfRange::clip);
  EXPECT_THAT(message_of(ErrorCode::unsupported,
                         [&] { grad(graph, sum(most).id, std::vector<NodeId>{rows.id}); }),
              HasSubstr("scatter dims=[0] max clip: found a gradient of it"));
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument, [&] { scatter(table, at, rows, 1); }),
      HasSubstr(
          "found updates of f32[3, 2], needed f32[4, 3]: a row of the first operand for each"));
  const NodeRef square = append_to(table, Op::decompose, {slice(table, {0, 0}, {2, 2})},
                                   DecompositionAttributes{Decomposition::qr});
  EXPECT_THAT(message_of(ErrorCode::unsupported,
                         [&] { grad(graph, sum(square).id, std::vector<NodeId>{table.id}); }),
              HasSubstr("decompose qr: found a gradient of it, needed one from a captured step"));
  const NodeRef x{&graph, append_input(graph, {DType::f32, {3}}, "x")};
  const NodeRef n{&graph, append_input(graph, {DType::i32, {}}, "n")};
  const NodeRef loss = reduce_sum(x, {0});
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { grad(graph, x.id, std::vector<NodeId>{x.id}); }),
              HasSubstr("f32[3]"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { grad(graph, loss.id, std::vector<NodeId>{n.id}); }),
              HasSubstr("i32[]"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { grad(graph, n.id, std::vector<NodeId>{x.id}); }),
              HasSubstr("i32[]"));
}

}  // namespace
}  // namespace shardwise
