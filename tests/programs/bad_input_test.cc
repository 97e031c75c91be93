#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/runtime/nn/attention.h"
#include "shardwise/runtime/nn/images.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/spmd/detail/propagate.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"
#include "testing/errors.h"

// Refusals of programs: whole messages, with the operation, its operands as nodes, where
// in the program it was recorded, with found and needed values.

namespace shardwise {
namespace {

using testing::HasSubstr;

std::string refused(const std::function<void()>& body) {
  return message_of(ErrorCode::invalid_argument, body);
}

/// A step that is being recorded in a scope, on two devices.
class BadInput : public testing::Test {
 protected:
  Devices devices_{2};
  Tracer tracer_{devices_, {.mesh = Mesh::line(2, "data")}};
  Tensor x_ = counting(tracer_, {2, 3}, "x"), y_ = counting(tracer_, {4}, "y");
  Tensor sum_ = x_ + x_;  // %1, of %0
  Tracer::Scope outer_ = tracer_.scope("layer0"), inner_ = tracer_.scope("attention");
};

TEST_F(BadInput, ShapesThatDoNotFit) {
  EXPECT_EQ(refused([&] { add(x_, y_); }),
            "add(%0 f32[2, 3], %2 f32[4]) in \"layer0/attention\": found shapes [2, 3] and [4], "
            "needed one shape, or extents that are equal or 1 from the last dim on");
  EXPECT_EQ(refused([&] { einsum("ab,bc->ac", x_, x_); }),
            "dot_general(%0 f32[2, 3], %0 f32[2, 3]) in \"layer0/attention\": found shapes [2, 3] "
            "and [2, 3] for \"ab,bc->ac\", needed one extent for \"b\"");
  EXPECT_EQ(refused([&] { reshape(x_, {4}); }),
            "reshape(%0 f32[2, 3]) in \"layer0/attention\": found [4] of 4 elements, needed the 6 "
            "of [2, 3]");
  EXPECT_EQ(refused([&] { top_k(x_, 1, 4); }),
            "top_k(%0 f32[2, 3]) in \"layer0/attention\": found k 4 and dim 1, needed one of its "
            "dims and at most as many as that has elements");
  EXPECT_EQ(refused([&] { top_k(x_, 2, 1); }),
            "top_k(%0 f32[2, 3]) in \"layer0/attention\": found k 1 and dim 2, needed one of its "
            "dims and at most as many as that has elements");
  EXPECT_EQ(refused([&] { attention(x_, x_, x_); }),
            "attention(%0 f32[2, 3], %0 f32[2, 3], %0 f32[2, 3]) in \"layer0/attention\": found "
            "queries f32[2, 3] and keys f32[2, 3], needed [batch, position, head, width]");
  EXPECT_EQ(refused([&] { rotary_embedding(x_); }),
            "rotary_embedding(%0 f32[2, 3]) in \"layer0/attention\": found f32[2, 3], needed "
            "[batch, position, head, width] of an even width");
}

TEST_F(BadInput, WindowsThatAreLargerThanTheirDim) {
  const Tensor images = counting(tracer_, {1, 2, 8, 6}, "images");
  const Tensor kernel = counting(tracer_, {3, 2, 3, 7}, "kernel");
  EXPECT_EQ(
      refused([&] { conv2d(images, kernel); }),
      "conv2d(%2 f32[1, 2, 8, 6], %3 f32[3, 2, 3, 7]) in \"layer0/attention\": found a window "
      "of 7 elements, 1 apart, along dim 3 of 6 with padding 0 and 0, needed room for one");
  EXPECT_EQ(conv2d(images, kernel, {.padding = 1}).shape(), (Shape{1, 3, 8, 2}));
  EXPECT_THAT(refused([&] { conv2d(images, kernel, {.padding = 1, .dilation = 2}); }),
              HasSubstr("7 elements, 2 apart, along dim 3 of 6 with padding 1 and 1"));
  EXPECT_EQ(refused([&] {
              max_pool(images, {-1, 2}, {6, 9});
            }),
            "pool(%2 f32[1, 2, 8, 6]) in \"layer0/attention\": found a window of 9 elements, 1 "
            "apart, along dim 2 of 8 with padding 0 and 0, needed room for one");
  EXPECT_THAT(refused([&] { avg_pool(images, {3}, {3}, {.dilation = {3}}); }),
              HasSubstr("3 elements, 3 apart, along dim 3 of 6"));
  EXPECT_EQ(avg_pool(images, {3}, {3}, {.low = {1}, .dilation = {3}}).shape(), (Shape{1, 2, 8, 1}));
  constexpr std::int64_t kMost = INT64_MAX;
  EXPECT_THAT(refused([&] { conv2d(images, kernel, {.padding = kMost}); }), HasSubstr("2^63"));
  EXPECT_THAT(refused([&] { conv2d(images, kernel, {.dilation = kMost}); }), HasSubstr("apart"));
  EXPECT_THAT(refused([&] { conv2d(images, kernel, {.dilation = 0}); }), HasSubstr("dilation"));
}

TEST_F(BadInput, DtypesThatDoNotFit) {
  EXPECT_EQ(refused([&] { add(x_, convert(x_, DType::f64)); }),
            "add(%0 f32[2, 3], %2 f64[2, 3]) in \"layer0/attention\": found operands of f32[2, 3] "
            "and f64[2, 3], needed one dtype: convert one of them");
  const auto unsupported = [](const std::function<void()>& body) {
    return message_of(ErrorCode::unsupported, body);
  };
  EXPECT_EQ(
      unsupported([&] { exp(convert(x_, DType::i32)); }),
      "exp(%3 i32[2, 3]) in \"layer0/attention\": found i32, needed one of f64, f32, f16, bf16");
  EXPECT_EQ(
      unsupported([&] { cumsum(convert(x_, DType::boolean), 1); }),
      "cumsum(%4 bool[2, 3]) in \"layer0/attention\": found bool, needed numbers: convert it");
}

TEST_F(BadInput, MarksThatDoNotFit) {
  EXPECT_EQ(message_of(ErrorCode::no_such_name,
                       [&] {
                         mark_sharding(sum_, {{"date"}, {}});
                       }),
            "mark %1 = add(%0, %0) : f32[2, 3] in \"layer0/attention\": found axis \"date\" in "
            "spec \"date,-\", needed one of mesh \"data=2\"");
  EXPECT_EQ(refused([&] {
              mark_sharding(sum_, {{"data"}, {"data"}});
            }),
            "mark %1 = add(%0, %0) : f32[2, 3] in \"layer0/attention\": found axis \"data\" twice "
            "in spec \"data,data\", needed each axis once");
  EXPECT_EQ(refused([&] {
              mark_sharding(y_, {{"data"}, {}});
            }),
            "mark \"y\" : f32[4] in \"layer0/attention\": found spec \"data,-\" of 2 dims for a "
            "tensor of 1, needed no more");
  EXPECT_EQ(refused([&] {
              mark_sharding(sum_, Mesh::line(1, "data"), {{"data"}, {}});
            }),
            "mark %1 = add(%0, %0) : f32[2, 3] in \"layer0/attention\": found mesh data=1, needed "
            "the data=2 of this program");
  mark_sharding(sum_, {{"data"}, {}});
  EXPECT_EQ(refused([&] {
              mark_sharding(sum_, {{}, {"data"}});
            }),
            "mark %1 = add(%0, %0) : f32[2, 3] marked data,- in \"layer0/attention\": found spec "
            "\"-,data\", needed the \"data,-\" that it is marked already: clear_sharding takes a "
            "mark away");
  EXPECT_EQ(message_of(ErrorCode::no_such_name, [&] { enable_manual_sharding(y_, {{"date"}}); }),
            "enter a manual region with \"y\" : f32[4] in \"layer0/attention\": found axis "
            "\"date\" in spec \"date\", needed one of mesh \"data=2\"");
  EXPECT_EQ(refused([&] { enable_manual_sharding(slice(y_, {0}, {3}), {{"data"}}); }),
            "enter a manual region with %3 = slice(%2) begin=[0] end=[3] stride=[1] : f32[3] in "
            "\"layer0/attention\": found dim 0 of f32[3] cut 2 ways, needed a number of ways that "
            "divides it");
}

TEST_F(BadInput, TensorsThatDoNotFit) {
  Tracer other(devices_);
  const Tensor theirs = counting(other, {2, 3});
  EXPECT_EQ(refused([&] { add(x_, theirs); }),
            "add in \"layer0/attention\": found tensors of two tracers, needed one");
  EXPECT_EQ(refused([&] { sum_.array(); }),
            "read a tensor: f32[2, 3] has not been run, needed mark_step()");
  EXPECT_EQ(refused([&] { x_.array(); }),
            "read a tensor: f32[2, 3] is on the host, needed a mark or a step that uses it");
  EXPECT_EQ(refused([&] { x_.item(); }), "read a scalar: found f32[2, 3], needed a scalar");
  const float one[] = {1};
  EXPECT_EQ(refused([&] {
              tracer_.tensor({DType::f32, {2}}, std::as_bytes(std::span(one)), "w");
            }),
            "make tensor \"w\": found 4 bytes for f32[2], needed 8");
}

/// A program that is built node by node is checked when it is propagated.
TEST_F(BadInput, MarksOfAGraphThatDoNotFit) {
  GraphBuilder graph;
  graph.scopes.push_back("layer0");
  const NodeRef x{&graph, append_input(graph, {DType::f32, {2, 3}}, "x")};
  graph.scope = 1;
  const NodeRef y = exp(x);
  graph.outputs = {y.id};
  graph.node(y.id).mark = PartitionSpec{{"data"}, {"data"}};
  EXPECT_EQ(refused([&] { propagate(graph, Mesh::line(2, "data")); }),
            "mark %1 = exp(%0) : f32[2, 3] marked data,data in \"layer0\": found axis \"data\" "
            "twice in spec \"data,data\", needed each axis once");
}

TEST_F(BadInput, GradientsThatAreNot) {
  const Tensor ids = convert(x_, DType::i32);
  const Tensor loss = reduce_sum(x_, {0, 1});
  EXPECT_EQ(refused([&] { grad(loss, {ids}); }),
            "grad in \"layer0/attention\": found %2 = convert(%0) : i32[2, 3] in "
            "\"layer0/attention\" to derive by, needed a floating tensor");
  EXPECT_EQ(refused([&] { grad(x_, {x_}); }),
            "grad in \"layer0/attention\": found the loss %0 = input() \"x\" : f32[2, 3], needed a "
            "floating scalar");
}

TEST_F(BadInput, AGradientOfAMaximumInAManualRegion) {
  const Tensor mine = enable_manual_sharding(x_, {{"data"}, {}});
  const std::string axes[] = {"data"};
  const Tensor most = all_reduce(mine, axes, Reduction::max);
  const Tensor loss = reduce_sum(disable_manual_sharding(most, {}, {1, 3}), {0, 1});
  EXPECT_EQ(message_of(ErrorCode::unsupported, [&] { grad(loss, {x_}); }),
            "grad of %3 = manual_all_reduce(%2) \"data\" max : f32[1, 3] in \"layer0/attention\": "
            "found a maximum or minimum, needed a sum");
  // Later nodes belong to no gradient, and to the scope that is open.
  EXPECT_EQ(refused([&] { add(x_, y_); }),
            "add(%0 f32[2, 3], %11 f32[4]) in \"layer0/attention\": found shapes [2, 3] and [4], "
            "needed one shape, or extents that are equal or 1 from the last dim on");
}

TEST_F(BadInput, AnIdOutsideOfTheTable) {
  const Tensor looked = take(y_, convert(x_, DType::i32), 0);
  const std::string message = refused([&] { tracer_.mark_step(); });
  EXPECT_THAT(message, HasSubstr("take %4 in \"layer0/attention\" on device "));
  EXPECT_THAT(message, HasSubstr("take: found id 4 at [1, 1], needed one in [0, 4)"));
}

TEST_F(BadInput, AScopeGoesOnInTheNextStep) {
  {
    const auto scope = tracer_.scope("head");
    tracer_.mark_step();
    EXPECT_THAT(refused([&] { add(x_, y_); }), HasSubstr(" in \"layer0/attention/head\": "));
  }
  EXPECT_THAT(refused([&] { add(x_, y_); }), HasSubstr(" in \"layer0/attention\": "));
}

/// Where it was made, though it is one of a chain that is fused without the check.
TEST(NanCheck, NamesTheOpThatMadeIt) {
  Devices devices(2);
  Tracer tracer(devices, {.mesh = Mesh::line(2, "data"), .nan_check = NanCheck::on});
  Tensor x = counting(tracer, {4});
  mark_sharding(x, {{"data"}});
  Tensor root = x;
  {
    const auto scope = tracer.scope("layer0");
    root = sqrt(x - 1.5);
  }
  const Tensor later = tanh(root + 1.0) * 2.0;
  EXPECT_EQ(refused([&] { tracer.mark_step(); }),
            "sqrt %3 in \"layer0\" on device 0: found NaN at [0], needed numbers");
}

}  // namespace
}  // namespace shardwise
