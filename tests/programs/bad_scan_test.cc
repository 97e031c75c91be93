#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/runtime/nn/layers.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"
#include "testing/errors.h"

// Loops that no program can have, from C++ and from texts.

namespace shardwise {
namespace {

using testing::HasSubstr;

std::string refusal_of(const std::function<void()>& body) {
  return message_of(ErrorCode::invalid_argument, body);
}

class BadScan : public testing::Test {
 protected:
  Devices devices_{1};
  Tracer tracer_{devices_};
  Tensor h_ = counting(tracer_, {2}, "h"), x_ = counting(tracer_, {4, 2}, "x");
  Tracer::Scope scope_ = tracer_.scope("net");
};

TEST_F(BadScan, ACarryThatChangesItsType) {
  const auto wider = [](const Tensor& h, const Tensor& x) {
    return std::pair(concatenate({h, x}, 0), nullptr);
  };
  EXPECT_EQ(refusal_of([&] { scan(wider, h_, x_); }),
            "scan(%0 f32[2], %1 f32[4, 2]) in \"net\": found a body that gives carry as f32[4], "
            "needed f32[2] as it gets it");
  using List = std::vector<Tensor>;
  const auto longer = [](const List& h, std::nullptr_t) {
    return std::pair(List{h[0], h[0], convert(h[0], DType::f64)}, nullptr);
  };
  EXPECT_EQ(refusal_of([&] {
              scan(longer, List{h_, h_}, nullptr, {.length = 2});
            }),
            "scan(%0 f32[2], %0 f32[2]) in \"net\": found a body that gives carry[0], carry[1], "
            "carry[2], needed carry[0], carry[1] as it gets");
  const auto other = [](const List& h, std::nullptr_t) {
    return std::pair(List{h[0], convert(h[0], DType::f64)}, nullptr);
  };
  EXPECT_EQ(refusal_of([&] {
              scan(other, List{h_, h_}, nullptr, {.length = 2});
            }),
            "scan(%0 f32[2], %0 f32[2]) in \"net\": found a body that gives carry[1] as f64[2], "
            "needed f32[2] as it gets it");
}

TEST_F(BadScan, ExtentsAndLengthsThatDiffer) {
  const auto body = [](const Tensor& h, const auto&) { return std::pair(h, nullptr); };
  EXPECT_EQ(
      refusal_of([&] { scan(body, h_, x_, {.length = 3}); }),
      "scan(%0 f32[2], %1 f32[4, 2]) in \"net\": found xs of f32[4, 2], needed 3 along dim 0, "
      "as the length says");
  EXPECT_EQ(refusal_of([&] { scan(body, h_, std::pair(x_, h_)); }),
            "scan(%0 f32[2], %1 f32[4, 2], %0 f32[2]) in \"net\": found xs[1] of f32[2], needed 4 "
            "along dim 0, as xs[0] has");
  EXPECT_EQ(refusal_of([&] { scan(body, h_, sum(h_)); }),
            "scan(%0 f32[2], %2 f32[]) in \"net\": found xs of f32[], needed a dim to go along");
  EXPECT_EQ(refusal_of([&] { scan(body, h_, nullptr); }),
            "scan(%0 f32[2]) in \"net\": found nothing stacked and no length, needed one of them");
  EXPECT_EQ(refusal_of([&] { scan(body, h_, nullptr, {.length = -1}); }),
            "scan(%0 f32[2]) in \"net\": found length -1, needed 0 or more");
  EXPECT_EQ(
      refusal_of([&] {
        scan([](const std::vector<Tensor>& h, std::nullptr_t) { return std::pair(h, nullptr); },
             std::vector<Tensor>{}, nullptr, {.length = 1});
      }),
      "scan: found nothing that is carried or stacked, needed a tensor");
}

TEST_F(BadScan, TensorsOfABodyThatHasEnded) {
  Tensor kept;
  scan(
      [&](const Tensor& h, const Tensor& x) {
        kept = h + x;
        return std::pair(kept, nullptr);
      },
      h_, x_);
  EXPECT_EQ(refusal_of([&] { neg(kept); }),
            "use a tensor: f32[2] is of the body of a scan or cond, needed one that this gives");
  EXPECT_THAT(
      refusal_of([&] {
        scan(
            [&](const Tensor& h, const Tensor&) {
              tracer_.mark_step();
              return std::pair(h, nullptr);
            },
            h_, x_);
      }),
      HasSubstr("run a step: found an open body of a scan or cond, needed to be outside of it"));
  // An error in a body leaves the tracer as it was outside of it.
  EXPECT_THAT(refusal_of([&] {
                scan(
                    [&](const Tensor& h, const Tensor& x) { return std::pair(reshape(h, {3}), x); },
                    h_, x_);
              }),
              HasSubstr("reshape(%0 f32[2]) in \"net\""));
  const Tensor fine = h_ + h_;
  tracer_.mark_step();
  EXPECT_EQ(floats(fine), (std::vector<float>{0, 2}));
}

TEST_F(BadScan, WhatFailsWhenRunNamesTheTrip) {
  const Tensor ids = tracer_.tensor<std::int32_t>({4}, {0, 1, 7, 0});
  const auto body = [&](const Tensor& h, const Tensor& id) {
    return std::pair(h + take(x_, id, 0), nullptr);
  };
  const auto [last, none] = scan(body, h_, ids);
  const std::string text = refusal_of([&] { tracer_.mark_step(); });
  EXPECT_THAT(text, HasSubstr("in \"net\", trip 2: take %"));
  EXPECT_THAT(text, HasSubstr("found id 7"));
}

/// A text of loops in loops, each of `trips` trips, around an addition.
std::string nested(int depth, std::int64_t trips) {
  std::string text, end;
  for (int level = 0; level < depth; ++level) {
    text += "%0 = input() \"h\" : f32[2]\n%1 = scan(%0) length=[" + std::to_string(trips) +
            "] carries=[1] xs=[0] : bool[0] {\n";
    end = "}\n%2 = result(%1) index=[0] : f32[2]\nreturn %2\n" + end;
  }
  return text + "%0 = input() \"h\" : f32[2]\n%1 = add(%0, %0) : f32[2]\nreturn %1\n" + end;
}

TEST(BadScanText, NumbersOfOperandsBeyondAll) {
  EXPECT_THAT(refusal_of([] {
                parse_graph(
                    "%0 = input() \"h\" : f32[2]\n"
                    "%1 = scan(%0) length=[1] carries=[1] xs=[9223372036854775807] : bool[0] {\n"
                    "%0 = input() \"h\" : f32[2]\nreturn %0\n}\nreturn %0\n");
              }),
              HasSubstr("needed an operand for each input and a result for each carry"));
}

TEST(BadScanText, TooManyBodiesInBodies) {
  EXPECT_EQ(parse_graph(nested(8, 3)).nodes.size(), 3U);
  EXPECT_THAT(refusal_of([] { parse_graph(nested(9, 3)); }),
              HasSubstr("found a body in more bodies, needed at most 8"));
}

TEST(BadScanText, MoreTripsThanAreCounted) {
  const auto plan = [](std::int64_t trips) {
    const Executable executable(std::make_shared<Graph>(parse_graph(nested(2, trips))),
                                Mesh::line(2), {});
    return executable.collectives().size();
  };
  EXPECT_EQ(plan(std::int64_t{1} << 20), 0U);
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { plan((std::int64_t{1} << 20) + 1); }),
              HasSubstr("count what loops do: found 1048577 trips of a loop that runs 1048577 "
                        "times, needed at most 1099511627776 together"));
}

}  // namespace
}  // namespace shardwise
