#include "shardwise/loader/detail/order/bitmap.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

constexpr std::size_t kWordBits = 64;
constexpr std::size_t kBlockWords = 32;  // 64 bits of index for 2,048 of the set

// The index of the 1 bit that has `rank` ones below it in the word.
std::int64_t select_in_word(std::uint64_t word, std::int64_t rank) {
  std::int64_t at = 0;
  for (int width = 32; width > 0; width /= 2) {
    const std::uint64_t low = word & ((std::uint64_t{1} << width) - 1);
    const std::int64_t ones = std::popcount(low);
    if (rank < ones) {
      word = low;
    } else {
      rank -= ones;
      word >>= width;
      at += width;
    }
  }
  return at;
}

}  // namespace

RankedBits::RankedBits(std::int64_t size, std::vector<std::uint64_t> words)
    : size_(size), words_(std::move(words)) {
  const std::size_t bits = static_cast<std::size_t>(std::max<std::int64_t>(size, 0));
  const std::size_t needed = (bits + kWordBits - 1) / kWordBits;
  if (size < 0 || words_.size() != needed) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("bitmap: got {} words for size {}, needed is a size of 0 or more and {} "
                    "words",
                    words_.size(), size, needed));
  }
  if (bits % kWordBits != 0 && words_.back() >> (bits % kWordBits) != 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("bitmap: a bit past size {} is 1, needed is 0", size));
  }
  before_.reserve(needed / kBlockWords + 2);
  std::int64_t count = 0;
  for (std::size_t word = 0; word < needed; ++word) {
    count += std::popcount(words_[word]);
    if ((word + 1) % kBlockWords == 0 || word + 1 == needed) before_.push_back(count);
  }
}

bool RankedBits::at(std::int64_t i) const {
  assert(0 <= i && i < size_);
  const std::size_t bit = static_cast<std::size_t>(i);
  return (words_[bit / kWordBits] >> (bit % kWordBits) & 1) != 0;
}

std::int64_t RankedBits::rank(std::int64_t i) const {
  assert(0 <= i && i <= size_);
  const std::size_t bit = static_cast<std::size_t>(i), end = bit / kWordBits;
  const std::size_t block = end / kBlockWords;
  if (end == words_.size()) return count();
  std::int64_t ones = before_[block];
  for (std::size_t word = block * kBlockWords; word < end; ++word) {
    ones += std::popcount(words_[word]);
  }
  const std::uint64_t below = (std::uint64_t{1} << (bit % kWordBits)) - 1;
  return ones + std::popcount(words_[end] & below);
}

std::int64_t RankedBits::select(std::int64_t j) const {
  assert(0 <= j && j < count());
  // The last block with a count of at most j before it: a block after an empty one has the same
  // count, so it must be the last.
  const auto after = std::upper_bound(before_.begin(), before_.end(), j);
  const std::size_t block = static_cast<std::size_t>(after - before_.begin()) - 1;
  std::int64_t rest = j - before_[block];
  std::size_t word = block * kBlockWords;
  for (;; ++word) {
    const std::int64_t ones = std::popcount(words_[word]);
    if (rest < ones) break;
    rest -= ones;
  }
  return static_cast<std::int64_t>(word * kWordBits) + select_in_word(words_[word], rest);
}

std::size_t RankedBits::memory_bytes() const {
  return words_.size() * sizeof(std::uint64_t) + before_.size() * sizeof(std::int64_t);
}

}  // namespace shardwise
