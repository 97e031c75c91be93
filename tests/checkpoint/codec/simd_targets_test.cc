// Highway picks at run time which of several versions of a loop this processor runs, so every other
// one would go untested. Here all of them run that it can run, and give the same bytes.

#include "testing/simd_targets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "checkpoint/codec/decoded.h"
#include "shardwise/checkpoint/detail/codec/codec.h"
#include "shardwise/checkpoint/detail/codec/zstd/plane_coder.h"

namespace shardwise::detail {
namespace {

using Bytes = std::vector<std::byte>;

// One bit in eight is set, so that it compresses.
Bytes skewed_bytes(std::size_t size, std::uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() & random() & random());
  return bytes;
}

// Around whole vectors of every width, blocks of 1,024 elements, and more than one of these.
constexpr std::size_t kCounts[] = {0,  1,  2,   7,   15,  16,   17,   31,   32,   33,  63,
                                   64, 65, 127, 129, 255, 1023, 1024, 1025, 2500, 5001};

TEST(SimdTargets, ShufflePlainly) {
  for (const std::size_t element : {1u, 2u, 3u, 4u, 8u, 16u}) {
    for (const std::size_t count : kCounts) {
      const Bytes in = skewed_bytes(element * count, 1);
      Bytes expected(in.size());
      for (std::size_t i = 0; i < in.size(); ++i) {
        expected[i % element * count + i / element] = in[i];
      }
      on_each_target([&] {
        SCOPED_TRACE(testing::Message() << count << " elements of " << element);
        Bytes planes(in.size());
        shuffle(in, element, planes);
        ASSERT_TRUE(planes == expected);
        // From any element on, and to memory that begins anywhere.
        for (const std::size_t first : {std::size_t{0}, count / 3, count}) {
          Bytes out(1 + in.size() - first * element);
          unshuffle(planes, element, first, std::span(out).subspan(1));
          ASSERT_TRUE(std::equal(out.begin() + 1, out.end(),
                                 in.begin() + static_cast<std::ptrdiff_t>(first * element)))
              << "from " << first;
        }
      });
    }
  }
}

// Each plane goes where a caller wants it; nothing around it is touched.
TEST(SimdTargets, ShuffleIntoPlanesAnywhere) {
  for (const std::size_t element : {2u, 3u, 4u, 8u, 16u}) {
    for (const std::size_t count : kCounts) {
      const Bytes in = skewed_bytes(element * count, 2);
      const std::size_t apart = count + 5;
      Bytes expected(element * apart, std::byte{0xAB});
      for (std::size_t i = 0; i < in.size(); ++i) {
        expected[i % element * apart + i / element] = in[i];
      }
      on_each_target([&] {
        SCOPED_TRACE(testing::Message() << count << " elements of " << element);
        Bytes out(expected.size(), std::byte{0xAB});
        std::vector<std::byte*> planes;
        for (std::size_t b = 0; b < element; ++b) planes.push_back(out.data() + b * apart);
        shuffle(in, element, planes);
        ASSERT_TRUE(out == expected);
      });
    }
  }
}

// Expects that `code` gives the same bytes on all targets; returns them.
Bytes same_on_each_target(const std::function<Bytes()>& code) {
  std::vector<Bytes> all;
  on_each_target([&] {
    all.push_back(code());
    EXPECT_TRUE(all.back() == all.front());
  });
  return all.front();
}

// Values that only some runs have, so that the search for those that are not in the sample matters.
TEST(SimdTargets, CodePlanesToTheSameFrame) {
  for (const std::size_t size :
       {1u, 2u, 255u, 257u, 1000u, 1216u, 4865u, 5003u, 70'001u, 131'072u, 300'001u}) {
    SCOPED_TRACE(testing::Message() << size << " bytes");
    Bytes plane = skewed_bytes(size, 4);
    for (std::byte& b : plane) b &= std::byte{0x1F};
    std::mt19937 random(5);
    for (std::size_t rare = size / 1500; rare > 0; --rare) {
      plane[random() % size] = static_cast<std::byte>(random());
    }
    const Bytes frame = same_on_each_target([&] {
      Bytes out(size + 1000);
      PlaneCoder coder;
      FrameWriter writer(out);
      writer.begin(size);
      coder.add(plane, true, writer);
      out.resize(writer.size());
      return out;
    });
    Decoder decoder;
    const auto back = decoder.decompress(frame, size);
    EXPECT_TRUE(std::equal(back.begin(), back.end(), plane.begin(), plane.end()));
  }
}

TEST(SimdTargets, EncodeChunksToTheSameBytes) {
  for (const std::size_t element : {1u, 2u, 4u, 8u}) {
    for (const std::size_t count : {1u, 1025u, 20'011u, 131'073u}) {
      SCOPED_TRACE(testing::Message() << count << " elements of " << element);
      const Bytes chunk = skewed_bytes(element * count, 6);
      for (const auto effort : {Effort::huffman_only, Effort::matches}) {
        const Bytes stored = same_on_each_target([&] {
          Bytes out(chunk.size());
          out.resize(Encoder().encode(chunk, element, effort, out));
          return out;
        });
        if (stored.empty()) continue;  // it would not shrink
        on_each_target([&] {
          Bytes back(chunk.size());
          Decoder decoder;
          decode(decoder, stored, element, back);
          EXPECT_TRUE(back == chunk);
        });
      }
    }
  }
}

}  // namespace
}  // namespace shardwise::detail
