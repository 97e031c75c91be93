#include "shardwise/checkpoint/detail/codec/zstd/huffman_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>
#include <vector>

namespace shardwise::detail {
namespace {

constexpr std::size_t kUnits = std::size_t{1} << kMaxCodeBits;  // of Kraft's sum

std::uint64_t coded_bits(const ByteCounts& counts, const CodeLengths& lengths) {
  std::uint64_t bits = 0;
  for (std::size_t v = 0; v < counts.size(); ++v) bits += std::uint64_t{counts[v]} * lengths[v];
  return bits;
}

/// The fewest bits of all codes there are: every value takes every length, as far as Kraft's sum
/// allows.
std::uint64_t fewest_bits(const ByteCounts& counts) {
  constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max() / 2;
  std::vector<std::uint64_t> best(kUnits + 1, kNever);
  best[0] = 0;
  for (const std::uint32_t count : counts) {
    if (count == 0) continue;
    std::vector<std::uint64_t> next(kUnits + 1, kNever);
    for (std::size_t used = 0; used < kUnits; ++used) {
      for (std::size_t length = 1; length <= kMaxCodeBits; ++length) {
        const std::size_t sum = used + (kUnits >> length);
        if (sum > kUnits) continue;
        next[sum] = std::min(next[sum], best[used] + length * count);
      }
    }
    best = std::move(next);
  }
  return *std::min_element(best.begin(), best.end());
}

void expect_best_code(const ByteCounts& counts) {
  const CodeLengths lengths = code_lengths(counts);
  std::size_t kraft = 0;
  for (std::size_t v = 0; v < counts.size(); ++v) {
    ASSERT_EQ(lengths[v] > 0, counts[v] > 0) << v;
    ASSERT_LE(lengths[v], kMaxCodeBits) << v;
    if (lengths[v] > 0) kraft += kUnits >> lengths[v];
  }
  EXPECT_EQ(kraft, kUnits);  // complete, as zstd wants it
  EXPECT_EQ(coded_bits(counts, lengths), fewest_bits(counts));

  const auto values = code_values(lengths);
  for (std::size_t v = 0; v < counts.size(); ++v) {
    for (std::size_t w = 0; w < counts.size(); ++w) {
      if (v == w || lengths[v] == 0 || lengths[w] < lengths[v]) continue;
      EXPECT_NE(values[w] >> (lengths[w] - lengths[v]), values[v]) << v << " begins " << w;
    }
  }
}

TEST(HuffmanCode, IsTheBestOfAll) {
  std::mt19937 random(1);
  for (const std::size_t used : {2u, 3u, 4u, 7u, 16u, 22u, 60u, 255u, 256u}) {
    SCOPED_TRACE(testing::Message() << used << " values");
    for (const double skew : {0.0, 0.1, 1.0, 3.0}) {
      std::vector<std::uint8_t> values(256);
      for (std::size_t v = 0; v < values.size(); ++v) values[v] = static_cast<std::uint8_t>(v);
      std::shuffle(values.begin(), values.end(), random);
      ByteCounts counts{};
      for (std::size_t i = 0; i < used; ++i) {
        const double most = 1e6 * std::exp(-skew * static_cast<double>(i % 40));
        counts[values[i]] =
            1 + static_cast<std::uint32_t>(random() % (static_cast<std::uint32_t>(most) + 1));
      }
      expect_best_code(counts);
    }
  }
}

// Without the limit the rarest value of Fibonacci's counts takes as many bits as there are values.
TEST(HuffmanCode, KeepsToTheLongestCodeThatZstdAllows) {
  ByteCounts counts{};
  std::uint32_t a = 1, b = 1;
  for (std::size_t v = 10; v < 40; ++v) {
    counts[v] = a;
    b = std::exchange(a, b) + b;
  }
  expect_best_code(counts);
}

TEST(HuffmanCode, TwoValuesTakeOneBitEach) {
  ByteCounts counts{};
  counts[7] = 1'000'000;
  counts[200] = 1;
  const CodeLengths lengths = code_lengths(counts);
  EXPECT_EQ(lengths[7], 1);
  EXPECT_EQ(lengths[200], 1);
}

// RFC 8878, section 4.2.1.1 has this code as its example: weights 4 3 2 0 1, and 1 for the last.
TEST(HuffmanCode, IsStatedAsInTheRfc) {
  CodeLengths lengths{};
  lengths[0] = 1;
  lengths[1] = 2;
  lengths[2] = 3;
  lengths[4] = 4;
  lengths[5] = 4;
  const std::vector<std::byte> expected{std::byte{127 + 5}, std::byte{0x43}, std::byte{0x20},
                                        std::byte{0x10}};
  EXPECT_EQ(describe_code(lengths), expected);
  const auto values = code_values(lengths);
  EXPECT_EQ(values[0], 0b1);
  EXPECT_EQ(values[1], 0b01);
  EXPECT_EQ(values[2], 0b001);
  EXPECT_EQ(values[4], 0b0000);
  EXPECT_EQ(values[5], 0b0001);
}

// All 256 values with codes of 8 bits: 255 equal weights can be stated in neither form.
TEST(HuffmanCode, SaysWhenItCannotBeStated) {
  CodeLengths lengths;
  lengths.fill(8);
  EXPECT_TRUE(describe_code(lengths).empty());
}

}  // namespace
}  // namespace shardwise::detail
