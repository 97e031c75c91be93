#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "runtime/values.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/tracer.h"
#include "testing/errors.h"

// Programs on tensors that are stored and moved, but not computed with.

namespace shardwise {
namespace {

using testing::HasSubstr;

/// Results of every op that gives elements as they are, on several cuts.
std::vector<Tensor> moved(Tracer& tracer, const Tensor& x) {
  const std::vector<std::int64_t> start{1};
  const Tensor one =
      tracer.tensor({DType::i64, {}}, std::as_bytes(std::span<const std::int64_t>(start)), "start");
  std::vector<Tensor> results{transpose(x, {1, 0}),
                              reshape(x, {3, 4, 4}),
                              slice(x, {1, 2}, {6, 8}, {2, 3}),
                              reverse(x, {0}),
                              broadcast(x, {5, 6, 8}, {1, 2}),
                              concatenate<Tensor>({x, reverse(x, {1})}, 0),
                              dynamic_slice<Tensor>(x, {one, one}, {3, 8}),
                              stop_gradient(x)};
  results.push_back(dynamic_update_slice<Tensor>(x, slice(x, {0, 0}, {2, 3}), {one, one}));
  Tensor turned = transpose(x, {1, 0});
  mark_sharding(turned, {{"data"}, {"model"}});
  results.push_back(turned);
  const Tensor mine = enable_manual_sharding(x, {{"data"}, {}});
  results.push_back(take(x, iota(x, {DType::i32, {4}}, 0), 0));
  results.push_back(take_along(x, iota(x, {DType::i32, {6, 3}}, 1), 1));
  results.push_back(disable_manual_sharding(reverse(mine, {1}), {{"data"}, {}}, {6, 8}));
  return results;
}

// Where each element has come from, the same program says of indices.
TEST(StoredDTypes, ProgramsMoveThemAsTheyMoveIndices) {
  const Shape shape{6, 8};
  std::mt19937 random(1);
  std::vector<std::int64_t> indices(48);
  for (std::size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<std::int64_t>(i);
  for (const DType dtype : all_dtypes()) {
    if (is_computed(dtype)) continue;
    Devices devices(4);
    Tracer tracer(devices, {.mesh = Mesh::parse("data=2,model=2")});
    const std::size_t element = size_bytes(dtype);
    const std::vector<std::byte> bytes = random_bytes(indices.size() * element, random);
    Tensor x = tracer.tensor({dtype, shape}, bytes, "x");
    Tensor index = tracer.tensor({DType::i64, shape}, std::as_bytes(std::span(indices)), "indices");
    mark_sharding(x, {{"data"}, {"model"}});
    mark_sharding(index, {{"data"}, {"model"}});
    const std::vector<Tensor> found = moved(tracer, x), from = moved(tracer, index);
    tracer.mark_step();
    for (std::size_t t = 0; t < found.size(); ++t) {
      SCOPED_TRACE(testing::Message() << name(dtype) << ", result " << t);
      const std::vector<std::byte> got = found[t].array().to_host();
      const std::vector<std::byte> origin = from[t].array().to_host();
      ASSERT_EQ(got.size() / element, origin.size() / sizeof(std::int64_t));
      for (std::size_t i = 0; i < got.size() / element; ++i) {
        const auto at = static_cast<std::size_t>(get(DType::i64, origin.data(), i));
        ASSERT_EQ(std::memcmp(&got[i * element], &bytes[at * element], element), 0) << i;
      }
    }
  }
}

TEST(StoredDTypes, ProgramsDoNotComputeWithThem) {
  Devices devices(2);
  for (const DType dtype : all_dtypes()) {
    if (is_computed(dtype)) continue;
    Tracer tracer(devices, {.mesh = Mesh::line(2, "data")});
    const std::vector<std::byte> bytes(4 * size_bytes(dtype));
    const Tensor x = tracer.tensor({dtype, {4}}, bytes, "x");
    const Tensor f32 = tracer.tensor({DType::f32, {4}}, std::vector<std::byte>(16), "f32");
    const Tensor ids = tracer.tensor({DType::i32, {4}}, std::vector<std::byte>(16), "ids");
    const std::string type(name(dtype));
    struct Call {
      std::string op;
      std::function<void()> body;
    };
    const std::vector<Call> cases{
        {"neg", [&] { neg(x); }},
        {"add", [&] { add(x, x); }},
        {"eq", [&] { eq(x, x); }},
        {"select", [&] { select(eq(f32, f32), x, x); }},
        {"convert", [&] { convert(x, DType::f32); }},
        {"convert", [&] { convert(f32, dtype); }},
        {"constant",
         [&] {
           constant(f32, {dtype, {4}}, 1);
         }},
        {"iota",
         [&] {
           iota(f32, {dtype, {4}}, 0);
         }},
        {"pad", [&] { pad(x, {1}, {1}); }},
        {"reduce_sum", [&] { reduce_sum(x, {0}); }},
        {"reduce_max", [&] { reduce_max(x, {0}); }},
        {"reduce_max", [&] { argmax(x, 0); }},
        {"index_of", [&] { index_of(x, reshape(slice(x, {0}, {1}), {}), 0); }},
        {"cumsum", [&] { cumsum(x, 0); }},
        {"dot_general", [&] { einsum("a,a->", x, x); }},
        {"scatter_add", [&] { scatter_add(ids, x, 0, 4); }},
        {"argsort", [&] { argsort(x, 0); }},
    };
    for (const Call& c : cases) {
      const std::string message = message_of(ErrorCode::unsupported, c.body);
      EXPECT_THAT(message, testing::StartsWith(c.op + "("));
      EXPECT_THAT(message, HasSubstr("found " + type + ", needed a type that is computed with"));
    }
    const Tensor mine = enable_manual_sharding(x, {{"data"}});
    const std::string axes[] = {"data"};
    EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { all_reduce(mine, axes, Reduction::sum); }),
                HasSubstr("found " + type));
    const Tensor scalar = reshape(slice(x, {0}, {1}), {});
    tracer.mark_step();
    EXPECT_EQ(message_of(ErrorCode::unsupported, [&] { scalar.item(); }),
              "read a scalar: found " + type + "[], needed a type that is computed with");
  }
}

}  // namespace
}  // namespace shardwise
