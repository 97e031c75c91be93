#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string_view>

namespace shardwise {

/// The number that splitmix64 adds before it mixes, so that 0 is not mapped to 0.
inline constexpr std::uint64_t kSplitMixGamma = 0x9e3779b97f4a7c15;

/// The finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014): one to one, and numbers that
/// differ in one bit give numbers that differ in about half of their bits. 0 gives 0. Thread-safe.
constexpr std::uint64_t mix_bits(std::uint64_t word) {
  word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9;
  word = (word ^ (word >> 27)) * 0x94d049bb133111eb;
  return word ^ (word >> 31);
}

/// The number that splitmix64 gives for a counter. Thread-safe.
constexpr std::uint64_t splitmix64(std::uint64_t counter) {
  return mix_bits(counter + kSplitMixGamma);
}

/// Mixes numbers and texts into one number; order counts. The same in every process of one build.
class Mixer {
 public:
  void add(std::uint64_t value) { state_ = splitmix64(state_ + value); }
  void add(std::string_view text) { add(std::hash<std::string_view>()(text)); }
  std::uint64_t state() const { return state_; }

 private:
  std::uint64_t state_ = 0;
};

/// Philox4x32-10: four words that look random, from a counter and a key alone (Salmon et al.,
/// "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
inline std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter,
                                           std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t first = std::uint64_t{0xD2511F53} * counter[0];
    const std::uint64_t second = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(second),
               static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(first)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

}  // namespace shardwise
