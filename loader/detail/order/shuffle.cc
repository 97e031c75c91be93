#include "shardwise/loader/detail/order/shuffle.h"

#include <fmt/format.h>

#include <bit>
#include <cassert>

#include "shardwise/shard/error.h"
#include "shardwise/shard/host/random.h"

namespace shardwise {
namespace {

// The round function. A half has at most 32 bits, so the high half of the product is enough.
std::uint64_t scramble(std::uint64_t half, std::uint64_t key) {
  std::uint64_t x = (half ^ key) * 0xd6e8feb86659fd93;
  x = (x ^ (x >> 32)) * 0xd6e8feb86659fd93;
  return x >> 32;
}

std::uint64_t low_bits(int count) { return (std::uint64_t{1} << count) - 1; }

}  // namespace

Shuffle::Shuffle(std::int64_t size, std::uint64_t seed, std::uint64_t epoch) : size_(size) {
  if (size < 0) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("shuffle: size is {}, needed is 0 or more", size));
  }
  const int bits =
      static_cast<int>(std::bit_width(static_cast<std::uint64_t>(size == 0 ? 0 : size - 1)));
  left_bits_ = bits / 2;
  right_bits_ = bits - left_bits_;
  // Mixed one after the other, so that seed 1 epoch 2 differs from seed 2 epoch 1.
  std::uint64_t state = mix_bits(mix_bits(seed + kSplitMixGamma) ^ (epoch + kSplitMixGamma));
  for (std::uint64_t& key : keys_) key = mix_bits(state += kSplitMixGamma);
}

// The halves keep their places and are changed in turn, so they may differ in width. The number of
// bits then need not be even, which keeps the walk below two steps on average.
std::int64_t Shuffle::at(std::int64_t number) const {
  assert(0 <= number && number < size_);
  std::uint64_t block = static_cast<std::uint64_t>(number);
  do {
    std::uint64_t left = block >> right_bits_, right = block & low_bits(right_bits_);
    for (std::size_t round = 0; round < kRounds; round += 2) {
      right ^= scramble(left, keys_[round]) & low_bits(right_bits_);
      left ^= scramble(right, keys_[round + 1]) & low_bits(left_bits_);
    }
    block = left << right_bits_ | right;
  } while (block >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(block);
}

std::int64_t Shuffle::position_of(std::int64_t index) const {
  assert(0 <= index && index < size_);
  std::uint64_t block = static_cast<std::uint64_t>(index);
  do {
    std::uint64_t left = block >> right_bits_, right = block & low_bits(right_bits_);
    for (std::size_t round = kRounds; round > 0; round -= 2) {
      left ^= scramble(right, keys_[round - 1]) & low_bits(left_bits_);
      right ^= scramble(left, keys_[round - 2]) & low_bits(right_bits_);
    }
    block = left << right_bits_ | right;
  } while (block >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(block);
}

}  // namespace shardwise
