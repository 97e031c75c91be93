#include "shardwise/runtime/memory/offsets.h"

#include <algorithm>
#include <numeric>

namespace shardwise {
namespace {

constexpr std::size_t kOffsetAlignment = 64;

std::size_t aligned(std::size_t bytes) {
  return (bytes + kOffsetAlignment - 1) / kOffsetAlignment * kOffsetAlignment;
}

}  // namespace

Offsets plan_offsets(std::span<const Lifetime> lifetimes) {
  std::vector<std::size_t> order(lifetimes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return lifetimes[a].bytes > lifetimes[b].bytes;
  });
  Offsets result;
  result.offsets.assign(lifetimes.size(), 0);
  std::vector<std::size_t> placed;  // by offset
  for (const std::size_t one : order) {
    const Lifetime& wanted = lifetimes[one];
    const std::size_t bytes = aligned(wanted.bytes);
    if (bytes == 0) continue;
    std::size_t end = 0, best = 0, best_gap = SIZE_MAX;
    for (const std::size_t other : placed) {
      const Lifetime& there = lifetimes[other];
      if (there.last < wanted.first || wanted.last < there.first) continue;
      const std::size_t begin = result.offsets[other];
      if (begin >= end && begin - end >= bytes && begin - end < best_gap) {
        best = end;
        best_gap = begin - end;
      }
      end = std::max(end, begin + aligned(there.bytes));
    }
    const std::size_t offset = best_gap == SIZE_MAX ? end : best;
    result.offsets[one] = offset;
    result.total_bytes = std::max(result.total_bytes, offset + bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), offset,
                                   [&](std::size_t at, std::size_t index) {
                                     return at < result.offsets[index];
                                   }),
                  one);
  }
  return result;
}

}  // namespace shardwise
