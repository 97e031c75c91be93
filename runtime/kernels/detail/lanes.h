#pragma once

#include <cstdint>

namespace shardwise::detail {

/// Combines element(0), .. element(count - 1) with T combine(T, T), in an order that depends only
/// on count. The compiler makes vectors of several partial results, each over every n-th element;
/// blocks keep the error of long floating sums small.
template <class T, class Combine, class Element>
T reduce_in_lanes(std::int64_t count, T identity, Combine combine, Element element) {
  constexpr std::int64_t kLanes = 64 / sizeof(T), kBlock = 8192;
  T total = identity;
  if (count < kLanes) {
    for (std::int64_t i = 0; i < count; ++i) total = combine(total, element(i));
    return total;
  }
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t end = begin + kBlock < count ? begin + kBlock : count;
    T lanes[kLanes];
    for (T& lane : lanes) lane = identity;
    std::int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        lanes[lane] = combine(lanes[lane], element(i + lane));
      }
    }
    for (std::int64_t lane = 0; i < end; ++i, ++lane) {
      lanes[lane] = combine(lanes[lane], element(i));
    }
    for (std::int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (std::int64_t lane = 0; lane < half; ++lane) {
        lanes[lane] = combine(lanes[lane], lanes[lane + half]);
      }
    }
    total = combine(total, lanes[0]);
  }
  return total;
}

}  // namespace shardwise::detail
