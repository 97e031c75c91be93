#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardwise/runtime/tracer.h"
#include "tensors.h"
#include "testing/errors.h"

// Programs on numbers that are easily confused: NaN, -0, integers at the ends of their types.

namespace shardwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// A program that is being recorded.
class Values : public testing::Test {
 protected:
  template <class T>
  Tensor tensor(DType dtype, const std::vector<T>& values) {
    return tracer_.tensor({dtype, {static_cast<std::int64_t>(values.size())}},
                          std::as_bytes(std::span(values)), "x");
  }
  template <class T>
  std::vector<T> values_of(const Tensor& tensor) {
    tracer_.mark_step();
    const std::vector<std::byte> bytes = tensor.array().to_host();
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  std::string refused(const std::function<void()>& body) {
    return message_of(ErrorCode::invalid_argument, body);
  }

  Devices devices_{4};
  Tracer tracer_{devices_, {.mesh = Mesh::parse("data=4")}};
};

TEST_F(Values, NaNIsNoOtherConstantOfAFusedKernel) {
  const Tensor x = tensor<float>(DType::f32, {0, 1, 2, 3});
  const Tensor filled = select(gt(x, full_like(x, 2)), full_like(x, kNaN), x * 5.0);
  const std::vector<float> found = values_of<float>(filled);
  EXPECT_THAT(std::vector(found.begin(), found.begin() + 3), ElementsAre(0, 5, 10));
  EXPECT_TRUE(std::isnan(found[3]));
}

TEST_F(Values, MinusZeroIsNoZeroOfAFusedKernel) {
  const Tensor x = tensor<float>(DType::f32, {0, 1, 2, 3});
  const Tensor y = 1.0 / select(gt(x, full_like(x, 2)), full_like(x, -0.0), full_like(x, 0.0));
  EXPECT_THAT(values_of<float>(y), ElementsAre(kInfinity, kInfinity, kInfinity, -kInfinity));
}

TEST_F(Values, TheTracerTellsConstantsApartByTheirBits) {
  const Tensor x = tensor<float>(DType::f32, {0, 1, 2, 3});
  for (const double zero : {0.0, -0.0}) {
    const Tensor y = 1.0 / full_like(x, zero);
    EXPECT_EQ(values_of<float>(y)[0], 1 / zero);
  }
  for (int turn = 0; turn < 3; ++turn) {
    const Tensor y = x + kNaN;
    tracer_.mark_step();
  }
  EXPECT_EQ(tracer_.counters().traces, 5);
  EXPECT_EQ(tracer_.counters().hits, 2);
}

TEST_F(Values, IntegersOf64BitsAreExact) {
  constexpr std::int64_t kOdd = (std::int64_t{1} << 53) + 1;
  const Tensor longs = tensor<std::int64_t>(DType::i64, {0, 1});
  EXPECT_THAT(values_of<std::int64_t>(longs + kOdd), ElementsAre(kOdd, kOdd + 1));
  EXPECT_THAT(values_of<std::int64_t>(pad(longs, {1}, {0}, INT64_MIN)),
              ElementsAre(INT64_MIN, 0, 1));
  const Tensor words = tensor<std::uint64_t>(DType::u64, {1, 2});
  EXPECT_THAT(values_of<std::uint64_t>(words * 0x9E3779B97F4A7C15U),
              ElementsAre(0x9E3779B97F4A7C15U, 0x3C6EF372FE94F82AU));
  EXPECT_THAT(values_of<std::uint64_t>(min(words, full_like(words, UINT64_MAX))),
              ElementsAre(1, 2));
}

TEST_F(Values, ANumberThatAnIntegerTypeDoesNotHaveIsRefused) {
  const Tensor bytes = tensor<std::int8_t>(DType::i8, {1});
  EXPECT_EQ(refused([&] { full_like(bytes, 300); }),
            "constant(): found the number 300, needed one that i8 has exactly");
  EXPECT_THAT(refused([&] { bytes + 0.5; }), HasSubstr("found the number 0.5"));
  EXPECT_THAT(refused([&] { pad(bytes, {1}, {1}, kNaN); }), HasSubstr("found the number nan"));
  EXPECT_THAT(refused([&] { full_like(convert(bytes, DType::u32), -1); }),
              HasSubstr("found the number -1, needed one that u32 has"));
  EXPECT_THAT(refused([&] { full_like(convert(bytes, DType::i64), 0x1p63); }),
              HasSubstr("needed one that i64 has"));
  EXPECT_THAT(refused([&] { full_like(convert(bytes, DType::u64), 0x1p64); }),
              HasSubstr("needed one that u64 has"));
  EXPECT_THAT(refused([&] { full_like(convert(bytes, DType::boolean), 2); }),
              HasSubstr("needed one that bool has"));
  EXPECT_THAT(values_of<std::int8_t>(bytes + 126.0), ElementsAre(127));
}

TEST_F(Values, IntegersWrapAroundWhenConverted) {
  const Tensor x = tensor<std::int32_t>(DType::i32, {300, -200, -1, 128});
  EXPECT_THAT(values_of<std::int8_t>(convert(x, DType::i8)), ElementsAre(44, 56, -1, -128));
  EXPECT_THAT(values_of<std::uint32_t>(convert(x, DType::u32)),
              ElementsAre(300, 4294967096, 4294967295, 128));
  const Tensor wide = tensor<std::int64_t>(DType::i64, {(std::int64_t{1} << 40) + 7});
  EXPECT_THAT(values_of<std::int32_t>(convert(wide, DType::i32)), ElementsAre(7));
}

TEST_F(Values, DivisionByZeroAndAtTheEndsIsThatOfLax) {
  const Tensor x = tensor<std::int32_t>(DType::i32, {7, 0, INT32_MIN, INT32_MIN});
  const Tensor y = tensor<std::int32_t>(DType::i32, {0, 0, -1, 0});
  EXPECT_THAT(values_of<std::int32_t>(x / y), ElementsAre(-1, -1, INT32_MIN, -1));
  EXPECT_THAT(values_of<std::int32_t>(rem(x, y)), ElementsAre(7, 0, 0, INT32_MIN));
  const Tensor u = tensor<std::uint8_t>(DType::u8, {7, 0});
  EXPECT_THAT(values_of<std::uint8_t>(u / (u * 0)), ElementsAre(255, 255));
}

TEST_F(Values, NaNIsTheLargestOfTopKAndOfASort) {
  const Tensor x = tensor<float>(DType::f32, {1, static_cast<float>(kNaN), -3, 2});
  EXPECT_THAT(values_of<std::int32_t>(top_k(x, 0, 2).indices), ElementsAre(1, 3));
  EXPECT_THAT(values_of<std::int32_t>(argsort(x, 0)), ElementsAre(2, 0, 3, 1));
}

// However the dim is cut: the first of equal ones, of NaN the first, and devices that have nothing.
TEST_F(Values, TheLargestIsFoundWhereItIsFirstInACutDim) {
  constexpr auto nan = static_cast<float>(kNaN), kLeast = -std::numeric_limits<float>::infinity();
  const std::vector<std::vector<float>> rows = {
      {1, 3, 3, 2, 3},     {2, 2, 2, 2, 2},   {-0.0F, 0, -0.0F, 0, -1},
      {5, nan, 7, 1, nan}, {nan, 0, 0, 0, 9}, {kLeast, kLeast, kLeast, kLeast, kLeast}};
  const std::vector<std::int32_t> largest{1, 0, 0, 1, 0, 0}, least{0, 0, 4, 1, 0, 0};
  for (const char* const mesh : {"d=1", "d=2", "d=3", "d=8", "e=2,d=3"}) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f64}) {
      Devices devices(8);
      Tracer on(devices, {.mesh = Mesh::parse(mesh)});
      std::vector<float> values;
      for (const auto& row : rows) values.insert(values.end(), row.begin(), row.end());
      Tensor x = on.tensor<float>({6, 5}, values, "x");
      mark_sharding(x, {{}, {"d"}});
      const Tensor wide = convert(x, dtype);
      const Tensor most = argmax(wide, 1), fewest = argmin(wide, -1);
      const Tensor none = index_of(wide, full_like(reduce_max(wide, {1}), 100), 1);
      on.mark_step();
      EXPECT_EQ(most.to_vector<std::int32_t>(), largest) << mesh << ' ' << name(dtype);
      EXPECT_EQ(fewest.to_vector<std::int32_t>(), least) << mesh << ' ' << name(dtype);
      EXPECT_THAT(none.to_vector<std::int32_t>(), testing::Each(2147483647)) << mesh;
    }
  }
}

TEST_F(Values, TheLargerOfTwoZerosHasNoSign) {
  for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
    const Tensor a = convert(tensor<float>(DType::f32, {0.0F, -0.0F, -0.0F}), dtype);
    const Tensor b = convert(tensor<float>(DType::f32, {-0.0F, 0.0F, -0.0F}), dtype);
    const auto signs = [&](const Tensor& x) {
      return values_of<float>(1.0 / convert(x, DType::f32));
    };
    EXPECT_THAT(signs(max(a, b)), ElementsAre(kInfinity, kInfinity, -kInfinity));
    EXPECT_THAT(signs(min(a, b)), ElementsAre(-kInfinity, -kInfinity, -kInfinity));
    EXPECT_THAT(signs(reduce_max(a, {0})), ElementsAre(kInfinity));
    EXPECT_THAT(signs(reduce_min(b, {0})), ElementsAre(-kInfinity));
  }
}

TEST_F(Values, ALookUpInACutTableKeepsEveryBit) {
  std::vector<std::uint32_t> bits(8, std::bit_cast<std::uint32_t>(-0.0F));
  bits[3] = 0x7fa00001;  // a signalling NaN
  bits[5] = 1;           // the least number
  Tensor x = tensor<std::uint32_t>(DType::f32, bits);
  mark_sharding(x, {{"data"}});
  const Tensor ids = tensor<std::int32_t>(DType::i32, {0, 3, 5, 7});
  const auto expected = ElementsAre(bits[0], bits[3], bits[5], bits[7]);
  EXPECT_THAT(values_of<std::uint32_t>(take(x, ids, 0)), expected);
  EXPECT_THAT(values_of<std::uint32_t>(take_along(x, ids, 0)), expected);
}

TEST_F(Values, IndicesOutsideAreClippedOrGiveANumber) {
  Tensor x = tensor<float>(DType::f32, {10, 11, 12, 13, 14, 15, 16, 17});
  mark_sharding(x, {{"data"}});
  const Tensor ids = tensor<std::int32_t>(DType::i32, {-9, -1, 0, 7, 8, 100});
  const auto nearest = ElementsAre(10, 10, 10, 17, 17, 17);
  const auto number = ElementsAre(-3, -3, 10, 17, -3, -3);
  EXPECT_THAT(values_of<float>(take_clipped(x, ids, 0)), nearest);
  EXPECT_THAT(values_of<float>(take_along_clipped(x, ids, 0)), nearest);
  EXPECT_THAT(values_of<float>(take_or(x, ids, 0, -3)), number);
  EXPECT_THAT(values_of<float>(take_along_or(x, ids, 0, -3)), number);
}

TEST_F(Values, AFloatMayHaveAnIntegerPower) {
  const Tensor x = tensor<float>(DType::f32, {-2, 0, 2});
  const Tensor n = tensor<std::int32_t>(DType::i32, {3, 0, -1});
  EXPECT_THAT(values_of<float>(pow(x, n)), ElementsAre(-8, 1, 0.5));
  EXPECT_THAT(values_of<float>(grad(reduce_sum(pow(x, n), {0}), {x})[0]),
              ElementsAre(12, 0, -0.25));
  EXPECT_THAT(refused([&] { pow(n, x); }), HasSubstr("needed one dtype"));
}

TEST_F(Values, ShapesThatOverflowAreRefused) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const Tensor x = tensor<float>(DType::f32, {0, 1, 2, 3, 4});
  EXPECT_EQ(refused([&] { pad(x, {kMost}, {kMost}); }),
            "pad(%0 f32[5]): found 5 elements, 9223372036854775807 before, 9223372036854775807 "
            "after, stride 1 in dim 0, needed an extent below 2^63");
  EXPECT_THAT(refused([&] { pad(x, {0}, {0}, {kMost / 2}, 0); }), HasSubstr("below 2^63"));
  const Tensor none = constant(x, {DType::f32, {kMost / 2, 0}}, 0);
  EXPECT_THAT(refused([&] {
                concatenate<Tensor>({none, none, none}, 0);
              }),
              HasSubstr("below 2^63"));
  EXPECT_THAT(values_of<float>(slice(x, {0}, {5}, {kMost})), ElementsAre(0));
  EXPECT_THAT(values_of<float>(pad(slice(x, {1}, {2}), {1}, {1}, {kMost}, 7)),
              ElementsAre(7, 1, 7));
  EXPECT_THAT(refused([&] {
                argmax(constant(x, {DType::i8, {kMost / 2}}, 0), 0);
              }),
              HasSubstr("needed at most 2147483647: indices are i32"));
}

TEST(ManyAxes, AreRefused) {
  std::vector<Axis> axes;
  for (int i = 0; i < 33; ++i) axes.push_back({"a" + std::to_string(i), 1});
  auto graph = std::make_shared<GraphBuilder>();
  graph->outputs = {append_input(*graph, {DType::f32, {4}}, "x")};
  graph->node(0).mark = PartitionSpec({{"a32"}});
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { Executable(graph, Mesh(axes), {}); }),
            "program: found a mesh of 33 axes, needed at most 32");
}

}  // namespace
}  // namespace shardwise
