#include "shardwise/loader/order/sample_random.h"

#include <cassert>
#include <cmath>
#include <numbers>

#include "shardwise/shard/host/random.h"
#include "shardwise/storage/hash.h"

namespace shardwise {
namespace {

std::uint32_t low_word(std::uint64_t x) { return static_cast<std::uint32_t>(x); }
std::uint32_t high_word(std::uint64_t x) { return static_cast<std::uint32_t>(x >> 32); }

// The high half of a product of two 64-bit numbers; the low half goes to `low`.
std::uint64_t wide_product(std::uint64_t a, std::uint64_t b, std::uint64_t& low) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  low = static_cast<std::uint64_t>(product);
  return static_cast<std::uint64_t>(product >> 64);
}

}  // namespace

SampleRandom::SampleRandom(const Sample& sample, std::uint64_t stage)
    : record_(static_cast<std::uint64_t>(sample.record)) {
  // Mixed one after the other, so that seed 1 epoch 2 differs from seed 2 epoch 1.
  std::uint64_t key = mix_bits(sample.seed + kSplitMixGamma);
  key = mix_bits((key ^ static_cast<std::uint64_t>(sample.epoch)) + kSplitMixGamma);
  key = mix_bits((key ^ stage) + kSplitMixGamma);
  key_ = {low_word(key), high_word(key)};
}

std::uint64_t SampleRandom::next() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const std::array<std::uint32_t, 4> words =
      philox({low_word(record_), high_word(record_), low_word(block_), high_word(block_)}, key_);
  ++block_;
  spare_ = std::uint64_t{words[3]} << 32 | words[2];
  has_spare_ = true;
  return std::uint64_t{words[1]} << 32 | words[0];
}

std::uint64_t SampleRandom::below(std::uint64_t n) {
  assert(n >= 1);
  std::uint64_t low = 0;
  std::uint64_t high = wide_product(next(), n, low);
  if (low < n) {
    const std::uint64_t uneven =
        (0 - n) % n;  // 2^64 mod n: the number of values that are drawn again
    while (low < uneven) high = wide_product(next(), n, low);
  }
  return high;
}

double SampleRandom::uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }

double SampleRandom::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));  // 1 - uniform() > 0
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

std::uint64_t stage_number(std::string_view name) { return hash64(name); }

}  // namespace shardwise
