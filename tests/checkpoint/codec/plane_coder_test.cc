#include "shardwise/checkpoint/detail/codec/zstd/plane_coder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "shardwise/checkpoint/detail/codec/codec.h"

namespace shardwise::detail {
namespace {

using Bytes = std::vector<std::byte>;

/// `values` different values, anywhere, each about 2^-skew times as frequent as the one before.
Bytes skewed_bytes(std::size_t size, std::size_t values, double skew, std::mt19937& random) {
  Bytes alphabet(256);
  for (std::size_t v = 0; v < alphabet.size(); ++v) alphabet[v] = static_cast<std::byte>(v);
  std::shuffle(alphabet.begin(), alphabet.end(), random);
  std::vector<double> weights;
  for (std::size_t v = 0; v < values; ++v) {
    weights.push_back(std::exp2(-skew * static_cast<double>(v)));
  }
  std::discrete_distribution<std::size_t> draw(weights.begin(), weights.end());
  Bytes bytes(size);
  for (std::byte& b : bytes) b = alphabet[draw(random)];
  return bytes;
}

/// The size of the frame of one plane, once zstd has decoded it.
std::size_t coded_size(const Bytes& plane, PlaneCoder& coder) {
  Bytes out(plane.size() + 1000);
  FrameWriter frame(out);
  frame.begin(plane.size());
  coder.add(plane, true, frame);
  const std::size_t size = frame.size();
  Decoder decoder;
  const auto back = decoder.decompress(std::span(out).first(size), plane.size());
  EXPECT_TRUE(std::equal(back.begin(), back.end(), plane.begin(), plane.end()));
  return size;
}

double entropy_bytes(const Bytes& plane) {
  std::vector<double> counts(256);
  for (const std::byte b : plane) ++counts[std::to_integer<std::size_t>(b)];
  double bits = 0;
  for (const double count : counts) {
    if (count > 0) bits += count * std::log2(static_cast<double>(plane.size()) / count);
  }
  return bits / 8;
}

TEST(PlaneCoder, ZstdDecodesPlanesOfAnySize) {
  std::mt19937 random(1);
  PlaneCoder coder;
  for (const std::size_t blocks : {0u, 1u, 3u}) {
    for (const std::size_t more : {1u, 2u, 3u, 255u, 256u, 257u, 258u, 259u, 1000u, 131'071u}) {
      SCOPED_TRACE(testing::Message() << blocks << " blocks and " << more << " bytes");
      coded_size(skewed_bytes(blocks * kZstdBlockBytes + more, 22, 0.4, random), coder);
    }
  }
}

TEST(PlaneCoder, ZstdDecodesAnyAlphabetNearItsEntropy) {
  std::mt19937 random(2);
  PlaneCoder coder;
  for (const std::size_t values : {1u, 2u, 3u, 5u, 17u, 40u, 128u, 129u, 200u, 255u, 256u}) {
    for (const double skew : {0.0, 0.01, 0.05, 0.3, 1.0, 2.0}) {
      SCOPED_TRACE(testing::Message() << values << " values, skew " << skew);
      const Bytes plane = skewed_bytes(100'000, values, skew, random);
      const std::size_t size = coded_size(plane, coder);
      // A code has whole bits: never more than one too many for a byte, in fact far less.
      EXPECT_LE(static_cast<double>(size), entropy_bytes(plane) + 0.07 * 100'000 + 300);
    }
  }
}

// The code goes with the first block that is coded. Blocks that do not shrink are in between.
TEST(PlaneCoder, ZstdDecodesPlanesWhoseBlocksDiffer) {
  std::mt19937 random(3);
  PlaneCoder coder;
  const std::vector<Bytes> blocks{skewed_bytes(kZstdBlockBytes, 256, 0, random),
                                  skewed_bytes(kZstdBlockBytes, 12, 0.5, random),
                                  skewed_bytes(kZstdBlockBytes, 1, 0, random)};
  for (std::size_t kinds = 0; kinds < 27; ++kinds) {
    SCOPED_TRACE(kinds);
    Bytes plane;
    for (const std::size_t kind : {kinds % 3, kinds / 3 % 3, kinds / 9}) {
      plane.insert(plane.end(), blocks[kind].begin(), blocks[kind].end());
    }
    EXPECT_LE(coded_size(plane, coder), plane.size() + 9 + 3 * 3);
  }
}

// Codes are made from a sample. Values that are not in the sample have a code, too.
TEST(PlaneCoder, ZstdDecodesValuesThatAreRare) {
  std::mt19937 random(5);
  PlaneCoder coder;
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(round);
    const auto most = static_cast<std::byte>(random());
    Bytes plane(1 + random() % 20'000, most);
    for (std::size_t rare = random() % 6; rare > 0; --rare) {
      plane[random() % plane.size()] = static_cast<std::byte>(random());
    }
    if (round % 3 == 0) plane.back() ^= std::byte{1};
    EXPECT_LE(coded_size(plane, coder), 200 + plane.size() / 7);
  }
}

TEST(PlaneCoder, SaysWhenTheRoomDoesNotSuffice) {
  std::mt19937 random(4);
  const Bytes plane = skewed_bytes(200'000, 22, 0.4, random);
  PlaneCoder coder;
  const std::size_t enough = coded_size(plane, coder);
  for (const std::size_t room : {std::size_t{0}, std::size_t{5}, std::size_t{12}, std::size_t{20},
                                 enough / 2, enough - 1, enough}) {
    Bytes out(room);
    FrameWriter frame(out);
    frame.begin(plane.size());
    coder.add(plane, true, frame);
    EXPECT_EQ(frame.size(), room == enough ? enough : 0);
  }
}

}  // namespace
}  // namespace shardwise::detail
