#include "shardwise/mend/detail/erasure_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

namespace shardwise::mend_detail {
namespace {

using Block = std::vector<std::byte>;

// The field by its definition: polynomials over bits, modulo x^8 + x^4 + x^3 + x^2 + 1.
unsigned product(unsigned a, unsigned b) {
  unsigned result = 0;
  for (; b != 0; b >>= 1) {
    if ((b & 1u) != 0) result ^= a;
    a <<= 1;
    if ((a & 0x100u) != 0) a ^= 0x11Du;
  }
  return result;
}

unsigned inverse(unsigned a) {
  for (unsigned b = 1; b < 256; ++b) {
    if (product(a, b) == 1) return b;
  }
  return 0;
}

Block random_block(std::mt19937& random, std::size_t bytes) {
  Block block(bytes);
  std::ranges::generate(block, [&] { return static_cast<std::byte>(random()); });
  return block;
}

std::vector<std::byte*> places_of(std::vector<Block>& blocks) {
  std::vector<std::byte*> places;
  for (Block& block : blocks) places.push_back(block.data());
  return places;
}

// Files that are written by one build are read by every other one.
TEST(ErasureCode, IsTheSumThatTheFormatPageSays) {
  std::mt19937 random(1);
  const std::vector<std::size_t> rows{0, 1, 5, 100};
  const ErasureCode code(rows);
  std::vector<Block> sums(rows.size(), Block(192)), expected = sums;
  for (const std::size_t source : {0u, 1u, 77u, 154u}) {
    const Block data = random_block(random, source == 77 ? 130 : 192);
    code.add(source, data, places_of(sums));
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const unsigned factor =
          inverse((255u - static_cast<unsigned>(rows[r])) ^ static_cast<unsigned>(source));
      for (std::size_t i = 0; i < data.size(); ++i) {
        expected[r][i] ^=
            static_cast<std::byte>(product(factor, std::to_integer<unsigned>(data[i])));
      }
    }
  }
  EXPECT_EQ(sums, expected);
}

TEST(ErasureCode, GivesBackWhateverIsMissing) {
  std::mt19937 random(2);
  for (int round = 0; round < 200; ++round) {
    const std::size_t parity = 1 + random() % (round % 10 == 0 ? 127 : 6);
    const std::size_t sources = 1 + random() % (255 - parity);
    const std::size_t bytes = 64 * (1 + random() % 3);
    std::vector<Block> data;
    for (std::size_t s = 0; s < sources; ++s) data.push_back(random_block(random, bytes));
    std::vector<std::size_t> rows(parity), missing(sources);
    std::iota(rows.begin(), rows.end(), std::size_t{0});
    std::iota(missing.begin(), missing.end(), std::size_t{0});
    std::ranges::shuffle(rows, random);
    std::ranges::shuffle(missing, random);
    missing.resize(std::min(sources, 1 + random() % parity));
    const ErasureCode code(rows);
    std::vector<Block> sums(parity, Block(bytes)), found(missing.size(), Block(bytes));
    for (std::size_t s = 0; s < sources; ++s) code.add(s, data[s], places_of(sums));
    // In this field adding again is taking away.
    for (std::size_t s = 0; s < sources; ++s) {
      if (std::ranges::find(missing, s) == missing.end()) code.add(s, data[s], places_of(sums));
    }
    code.solve(missing, places_of(sums), places_of(found), bytes);
    for (std::size_t i = 0; i < missing.size(); ++i) {
      ASSERT_EQ(found[i], data[missing[i]]) << round << " " << parity << " " << sources;
    }
  }
}

}  // namespace
}  // namespace shardwise::mend_detail
