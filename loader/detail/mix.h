#pragma once

#include <cstdint>

namespace shardwise::detail {

/// Scatters a number over all 64 bits, one to one: the finaliser of splitmix64 (Steele, Lea, Flood,
/// "Fast splittable pseudorandom number generators", 2014).
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// What splitmix64 adds before each mix(), so that 0 is not mapped to 0.
inline constexpr std::uint64_t kMixGamma = 0x9e3779b97f4a7c15;

}  // namespace shardwise::detail
