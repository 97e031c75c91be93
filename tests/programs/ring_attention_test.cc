#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/runtime/nn/attention.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/tensor.h"
#include "shardwise/runtime/tracer.h"
#include "tensors.h"
#include "testing/errors.h"

// ring_attention() gives the values and gradients of attention(), and sends each block of keys and
// values around once.

namespace shardwise {
namespace {

constexpr std::int64_t kSequences = 2, kRingPositions = 24, kHeadWidth = 4;

struct RingCase {
  const char* mesh;
  std::int64_t blocks;  ///< 0: attention() on one device
  Mask mask = Mask::causal;
  std::int64_t heads = 2, key_heads = 2;
};

struct RingResult {
  std::vector<float> q, k, v;     ///< gradients
  std::vector<std::size_t> sent;  ///< by device
};

/// The attention, and the gradients of a weighted sum of it; planned memory is compared with
/// measured.
RingResult ring(const RingCase& c, bool with_gradients = true) {
  const Mesh mesh = Mesh::parse(c.mesh);
  Devices devices(mesh.size(), {.threads = 2});
  Tracer tracer(devices, {.mesh = mesh});
  const auto axis = [&](const char* name) {
    return std::string(c.mesh).find(name) == std::string::npos ? PartitionSpec::Entry{}
                                                               : PartitionSpec::Entry{name};
  };
  const auto tensor = [&](std::int64_t heads, std::uint32_t seed, const char* label) {
    const Shape shape{kSequences, kRingPositions, heads, kHeadWidth};
    std::vector<float> values = small(shape, seed);
    for (float& value : values) value /= 2;
    // Positions are put in order before they are cut, as a job does with its tokens.
    const bool in_order = c.blocks > 0 && c.mask == Mask::causal;
    Tensor made = tracer.tensor(shape, values, label);
    mark_sharding(
        made,
        {axis("data"), in_order ? PartitionSpec::Entry{} : axis("context"), axis("model"), {}});
    return made;
  };
  const Tensor q = tensor(c.heads, 1, "q"), k = tensor(c.key_heads, 2, "k");
  const Tensor v = tensor(c.key_heads, 3, "v");
  const auto ordered = [&](const Tensor& x) {
    if (c.blocks == 0 || c.mask == Mask::none) return x;
    Tensor made = zigzag(x, 1, c.blocks);
    mark_sharding(made, {axis("data"), axis("context"), axis("model"), {}});
    return made;
  };
  const Tensor y = c.blocks == 0
                       ? attention(q, k, v, c.mask)
                       : ring_attention(ordered(q), ordered(k), ordered(v), c.blocks, c.mask);
  RingResult found;
  std::vector<Tensor> gradients;
  if (with_gradients) {
    gradients = grad(sum(y * ordered(tensor(c.heads, 4, "weights"))), {q, k, v});
  }
  for (const DeviceId id : devices.addressable()) devices.at(id).reset_peak();
  tracer.mark_step();
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    EXPECT_EQ(tracer.last()->memory(p).peak_bytes, devices.at(p).memory().peak_bytes) << c.mesh;
    found.sent.push_back(devices.at(p).traffic().sent_bytes);
  }
  if (!with_gradients) return found;
  found.q = floats(gradients[0]);
  found.k = floats(gradients[1]);
  found.v = floats(gradients[2]);
  return found;
}

auto near_all(const std::vector<float>& values) {
  return testing::Pointwise(testing::FloatNear(1e-4F), values);
}

TEST(RingAttention, GivesTheGradientsOfAttentionOnAnyMesh) {
  for (const RingCase& c :
       {RingCase{"", 1}, RingCase{"", 4}, RingCase{"context=2", 2}, RingCase{"context=4", 4},
        RingCase{"context=3", 3}, RingCase{"context=3", 4},  // uneven
        RingCase{"context=4", 2},                            // two have nothing
        RingCase{"data=2,context=2", 2}, RingCase{"context=2,model=2", 2},
        RingCase{"data=2,context=3,model=2", 3}}) {
    for (const Mask mask : {Mask::causal, Mask::none}) {
      for (const std::int64_t key_heads : {2, 4}) {
        const RingResult expected = ring({"", 0, mask, 4, key_heads});
        EXPECT_THAT(expected.k, testing::Contains(testing::Ne(0)));
        const RingResult found = ring({c.mesh, c.blocks, mask, 4, key_heads});
        const std::string which =
            fmt::format("{} {} {} {}", c.mesh, c.blocks, mask == Mask::causal, key_heads);
        EXPECT_THAT(found.q, near_all(expected.q)) << which;
        EXPECT_THAT(found.k, near_all(expected.k)) << which;
        EXPECT_THAT(found.v, near_all(expected.v)) << which;
      }
    }
  }
}

TEST(RingAttention, SendsKeysAndValuesOnceAroundTheRing) {
  const std::int64_t blocks = 4;
  const std::size_t block =
      as_size(kSequences * kRingPositions / blocks * 2 * kHeadWidth) * sizeof(float);
  const std::vector<std::size_t> around(4, 2 * block * as_size(blocks - 1));
  std::vector<std::size_t> there_and_back = around;
  for (std::size_t& sent : there_and_back) sent *= 2;
  EXPECT_EQ(ring({"context=4", blocks, Mask::causal}, false).sent, around);
  EXPECT_EQ(ring({"context=4", blocks, Mask::none}, false).sent, around);
  EXPECT_EQ(ring({"context=4", blocks, Mask::none}).sent, there_and_back);
}

TEST(RingAttention, HasHalfTheProductsIfItIsCausal) {
  const auto products = [](std::int64_t blocks, Mask mask) {
    Devices devices(8);
    Tracer tracer(devices, {.mesh = Mesh({8}, {"context"})});
    Tensor x = tracer.abstract_tensor({DType::f32, {1, 512, 1, 8}}, "x");
    mark_sharding(x, {{}, {"context"}, {}, {}});
    const Tensor y = blocks == 0 ? attention(x, x, x, mask) : ring_attention(x, x, x, blocks, mask);
    const auto plan = tracer.plan();
    return report(*plan, machines()[0]).device_flops;
  };
  const double all = products(0, Mask::none);
  EXPECT_EQ(products(8, Mask::none), all);
  // Three chunks of its own, two half used, and two of each other block: 17 of 32.
  EXPECT_DOUBLE_EQ(products(8, Mask::causal), all * 17 / 32);
}

TEST(RingAttention, RefusesWhatDoesNotDivide) {
  Devices devices(1);
  Tracer tracer(devices);
  const Tensor q = counting(tracer, {1, 12, 4, 2}), k = counting(tracer, {1, 12, 3, 2});
  const auto refusal = [&](const Tensor& keys, std::int64_t blocks) {
    return message_of(ErrorCode::invalid_argument,
                      [&] { return ring_attention(q, keys, keys, blocks); });
  };
  EXPECT_EQ(refusal(k, 2),
            "ring_attention(%0 f32[1, 12, 4, 2], %1 f32[1, 12, 3, 2], %1 f32[1, 12, 3, 2]): found "
            "queries f32[1, 12, 4, 2] and keys f32[1, 12, 3, 2], needed [batch, position, head, "
            "width] of as many positions, heads that divide, and 4 that divides the positions");
  EXPECT_THAT(refusal(q, 4), testing::HasSubstr("and 8 that divides the positions"));
  EXPECT_THAT(refusal(q, 0), testing::HasSubstr("needed"));
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { return zigzag(q, 2, 3); }),
            "zigzag(%0 f32[1, 12, 4, 2]): found dim 2 of f32[1, 12, 4, 2] for 3 blocks, needed an "
            "extent that 6 divides");
}

TEST(Zigzag, PutsEarlyAndLateChunksTogether) {
  Devices devices(1);
  Tracer tracer(devices);
  const Tensor x = counting(tracer, {2, 6});
  const Tensor y = zigzag(x, -1, 3);
  tracer.mark_step();
  EXPECT_EQ(floats(y), (std::vector<float>{0, 5, 1, 4, 2, 3, 6, 11, 7, 10, 8, 9}));
}

}  // namespace
}  // namespace shardwise
