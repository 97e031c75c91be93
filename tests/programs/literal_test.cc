#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/tracer.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using testing::HasSubstr;

std::vector<std::byte> some_bytes(std::size_t count) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < count; ++i) bytes.push_back(std::byte(i * 37 % 251));
  return bytes;
}

// Every dtype, stored ones too; if it is cut, each device makes its part.
TEST(Literal, KeepsEveryBitAndMovesNothing) {
  for (const DType dtype : all_dtypes()) {
    SCOPED_TRACE(name(dtype));
    Devices devices(4);
    Tracer tracer(devices, {.mesh = Mesh::parse("x=2,y=2")});
    const TensorType type{dtype, {5, 3}};
    std::vector<std::byte> bytes = some_bytes(num_bytes(type.shape, size_bytes(dtype)));
    if (dtype == DType::boolean) {
      for (std::byte& byte : bytes) byte &= std::byte{1};
    }
    const Tensor context = tracer.tensor({DType::u8, {1}}, std::vector<std::uint8_t>{0}, "x");
    Tensor whole = literal(context, type, bytes);
    mark_sharding(whole, PartitionSpec::parse("y,x"));
    const Tensor part = reverse(slice(whole, {1, 0}, {4, 3}), {0, 1});
    tracer.mark_step();
    EXPECT_EQ(whole.array().to_host(), bytes);
    std::size_t wire = 0;
    for (const CollectiveTotal& total : tracer.last()->collectives()) wire += total.wire_bytes;
    EXPECT_EQ(wire, 0U) << dump_steps(*tracer.last());
    const std::vector<std::byte> turned = part.array().to_host();
    const std::size_t width = size_bytes(dtype);
    for (std::size_t i = 0; i < 9 * width; ++i) {
      EXPECT_EQ(turned[i], bytes[(3 + 8 - i / width) * width + i % width]);
    }
  }
}

Graph graph_of(const std::vector<double>& values) {
  GraphBuilder graph;
  const NodeRef x{&graph, append_input(graph, {DType::f64, {2}}, "x")};
  graph.outputs = {(x + literal(x, x.type(), std::as_bytes(std::span(values)))).id};
  return graph;
}

TEST(Literal, IsToldApartByItsBits) {
  const double nan = std::bit_cast<double>(0x7ff8000000000001);
  const double other_nan = std::bit_cast<double>(0x7ff8000000000002);
  const Graph one = graph_of({0.0, nan});
  EXPECT_TRUE(same_program(one, graph_of({0.0, nan})));
  EXPECT_EQ(hash(one), hash(graph_of({0.0, nan})));
  for (const std::vector<double>& other : {std::vector{-0.0, nan}, {0.0, other_nan}, {nan, 0.0}}) {
    EXPECT_FALSE(same_program(one, graph_of(other)));
    EXPECT_NE(hash(one), hash(graph_of(other)));
    EXPECT_NE(dump(one), dump(graph_of(other)));
  }
}

TEST(Literal, NeedsTheBytesOfItsType) {
  GraphBuilder graph;
  const NodeRef x{&graph, append_input(graph, {DType::f32, {2}}, "x")};
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           literal(x, {DType::c64, {3}}, some_bytes(23));
                         }),
              HasSubstr("literal(): found 23 bytes for c64[3], needed 24"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           literal(x, {DType::boolean, {3}}, some_bytes(3));
                         }),
              HasSubstr("found the byte 37 for bool, needed 0 or 1"));
}

}  // namespace
}  // namespace shardwise
