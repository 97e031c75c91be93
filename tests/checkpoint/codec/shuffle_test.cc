#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "shardwise/checkpoint/detail/codec/codec.h"

namespace shardwise::detail {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t size) {
  std::mt19937 random(1);
  Bytes bytes(size);
  for (auto& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

TEST(Shuffle, PutsEachByteOfAnElementIntoItsPlane) {
  for (const std::size_t element : {1u, 2u, 3u, 4u, 8u, 16u}) {
    for (const std::size_t count :
         {0u, 1u, 2u, 15u, 16u, 31u, 64u, 65u, 255u, 1023u, 1024u, 1025u, 5000u}) {
      SCOPED_TRACE(testing::Message() << count << " elements of " << element);
      const Bytes in = random_bytes(element * count);
      Bytes planes(in.size()), back(in.size());
      shuffle(in, element, planes);
      for (std::size_t i = 0; i < count; ++i) {
        for (std::size_t b = 0; b < element; ++b) {
          ASSERT_EQ(planes[b * count + i], in[i * element + b]) << i << " " << b;
        }
      }
      unshuffle(planes, element, 0, back);
      EXPECT_EQ(back, in);
      // Some elements out of the middle.
      const std::size_t first = count / 3, some = (count - first) / 2;
      Bytes part(some * element);
      unshuffle(planes, element, first, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(),
                             in.begin() + static_cast<std::ptrdiff_t>(first * element)));
    }
  }
}

// Whole vectors are stored to places that a caller gives: none may reach over the end.
TEST(Shuffle, WritesNothingBeyondItsOutput) {
  for (const std::size_t element : {2u, 4u, 8u}) {
    for (const std::size_t count : {1u, 17u, 63u, 1030u}) {
      SCOPED_TRACE(testing::Message() << count << " elements of " << element);
      const Bytes in = random_bytes(element * count);
      for (const bool back : {false, true}) {
        Bytes out(in.size() + 256, std::byte{0xAB});
        const std::span<std::byte> to = std::span(out).first(in.size());
        if (back) {
          unshuffle(in, element, 0, to);
        } else {
          shuffle(in, element, to);
        }
        for (std::size_t i = in.size(); i < out.size(); ++i) ASSERT_EQ(out[i], std::byte{0xAB});
      }
    }
  }
}

}  // namespace
}  // namespace shardwise::detail
