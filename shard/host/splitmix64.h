#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace shardwise {

/// What splitmix64 adds before it mixes, so that 0 is not mapped to 0.
inline constexpr std::uint64_t kSplitMixGamma = 0x9e3779b97f4a7c15;

/// The finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014): one to one, and numbers that
/// differ in a bit give numbers that differ in about half of theirs. 0 gives 0. Thread-safe.
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

}  // namespace shardwise
