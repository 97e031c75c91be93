#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/runtime/nn/optimizers.h"
#include "shardwise/runtime/ops/build.h"
#include "shardwise/runtime/ops/control.h"
#include "shardwise/runtime/spmd/detail/planned.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"

// Sums of bf16 and f16 numbers over cut dims: their parts are f32 until they are combined, so that
// a sum is rounded once, as on one device.

namespace shardwise {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;
using testing::HasSubstr;
using testing::Not;

std::string partitioned(std::string_view text) {
  const PlannedProgram planned(std::make_shared<const Graph>(parse_graph(text)),
                               Mesh::parse("data=2"), {});
  return dump(*planned.graph, planned.mesh, planned.partitioned);
}

TEST(NarrowSums, AreRoundedWhenTheirPartsAreCombined) {
  EXPECT_EQ(partitioned(R"(
      %0 = input() "x" : bf16[8, 4] marked data,-
      %1 = input() "s" : bf16[4] marked -
      %2 = reduce_sum(%0) dims=[0] : bf16[4]
      %3 = mul(%2, %1) : bf16[4]
      %4 = transpose(%3) dims=[0] : bf16[4]
      return %4
  )"),
            "mesh data=2\n"
            "v0[data,-] = input %0 \"x\"\n"
            "v1[-] = input %1 \"s\"\n"
            "v2[- parts{data:2}] = reduce_sum(v0[data,-]) : f32[4]  # %2\n"
            "v3[- parts{data:2}] = mul(v2[- parts{data:2}], v1[-]) : f32[4]  # %3\n"
            "v4[- parts{data:2}] = transpose(v3[- parts{data:2}]) : f32[4]  # %4\n"
            "v5[-] = all-reduce{data:2}(v4[- parts{data:2}]) 16 bytes, wire 16  # for %4\n"
            "v6[-] = convert(v5[-]) : bf16[4]  # %4\n"
            "return v6[-]\n");
}

TEST(NarrowSums, OfTheLargestNumberStayNarrow) {
  EXPECT_THAT(partitioned(R"(
      %0 = input() "x" : bf16[8, 4] marked data,-
      %1 = reduce_max(%0) dims=[0] : bf16[4]
      return %1
  )"),
              Not(HasSubstr("f32")));
}

/// The result of a function of tensors of a narrow dtype on a mesh that cuts the first.
template <class Function>
std::vector<float> on_mesh(const char* mesh, DType dtype, const Shape& shape,
                           const std::vector<float>& values, const Function& function) {
  const Mesh of = Mesh::parse(mesh);
  Devices devices(of.size());
  Tracer tracer(devices, {.mesh = of});
  Tensor x = tracer.tensor<float>(shape, values, "x");
  mark_sharding(x, PartitionSpec::parse(shape.size() == 1 ? "data" : "data,-"));
  const Tensor y = function(tracer, convert(x, dtype));
  EXPECT_EQ(y.dtype(), dtype);
  tracer.mark_step();
  return floats(y);
}

TEST(NarrowSums, AreThoseOfOneDevice) {
  const auto total = [](Tracer&, const Tensor& x) { return sum(x); };
  // Parts of 257 and 258; bf16 rounds 257 to 256.
  const std::vector<float> near{256, 1, 256, 2};
  EXPECT_THAT(on_mesh("data=1", DType::bf16, {4}, near, total), ElementsAre(516));
  EXPECT_THAT(on_mesh("data=2", DType::bf16, {4}, near, total), ElementsAre(516));
  // Parts of 120,000, which f16 has not.
  const std::vector<float> large{60000, 60000, -60000, -59968};
  for (const char* const mesh : {"data=1", "data=2", "data=4"}) {
    EXPECT_THAT(on_mesh(mesh, DType::f16, {4}, large, total), ElementsAre(32)) << mesh;
  }
  // Parts of 129 * 131 and 133 * 135, which bf16 has not.
  const auto all = [](Tracer&, const Tensor& x) { return reduce_prod(x, {0}); };
  const std::vector<float> factors{129.0F / 64, 131.0F / 64, 133.0F / 64, 135.0F / 64};
  const auto rounded = on_mesh("data=1", DType::bf16, {4}, factors, all);
  for (const char* const mesh : {"data=2", "data=4", "data=3"}) {
    EXPECT_THAT(on_mesh(mesh, DType::bf16, {4}, factors, all), ElementsAreArray(rounded)) << mesh;
  }
  const auto product = [](Tracer&, const Tensor& x) { return matmul(transpose(x), x); };
  const auto one = on_mesh("data=1", DType::bf16, {4, 1}, {16, 1, 16, 1.4142F}, product);
  EXPECT_THAT(on_mesh("data=2", DType::bf16, {4, 1}, {16, 1, 16, 1.4142F}, product),
              ElementsAreArray(one));
}

// The gradient of a weight is a sum over rows and over trips: parts of it are carried.
TEST(NarrowSums, ThatAScanCarriesAreThoseOfOneDevice) {
  std::vector<float> rows(6);
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = 256 + 2 * static_cast<float>(i % 2);
  const auto gradient = [](Tracer& tracer, const Tensor& x) {
    const Tensor w = convert(full(tracer, {DType::f32, {1}}, 1, "w"), x.dtype());
    const auto body = [&](const Tensor& h, const Tensor&) {
      const Tensor next = h + reduce_sum(x * w, {0});
      return std::pair(next, next);
    };
    const Tensor first = convert(full(tracer, {DType::f32, {1}}, 0, "h"), x.dtype());
    const Tensor xs = convert(full(tracer, {DType::f32, {3, 1}}, 0, "xs"), x.dtype());
    return grad(sum(scan(body, first, xs).first), w);
  };
  const auto one = on_mesh("data=1", DType::bf16, {6, 1}, rows, gradient);
  EXPECT_THAT(on_mesh("data=2", DType::bf16, {6, 1}, rows, gradient), ElementsAreArray(one));
  EXPECT_THAT(on_mesh("data=3", DType::bf16, {6, 1}, rows, gradient), ElementsAreArray(one));
}

}  // namespace
}  // namespace shardwise
