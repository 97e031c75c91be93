#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace shardwise {

/// Bytes that are needed from one step to another.
struct Lifetime {
  std::size_t bytes = 0;
  std::int64_t first = 0, last = 0;  ///< steps, both included
};

/// Bytes rounded up to the next possible offset: a multiple of 64.
std::size_t aligned_offset(std::size_t bytes);

/// Places in one region of memory: none that are needed at the same time overlap.
struct Offsets {
  std::vector<std::size_t> offsets;  ///< by lifetime; aligned_offset()
  std::size_t total_bytes = 0;
  std::size_t visits = 0;  ///< to lifetimes that had a place already: the cost of the search
};

/// The largest first, each into the smallest gap that holds it for all its steps. (Source: "greedy
/// by size" of Pisarchyk and Lee, arXiv 2001.03288.)
Offsets plan_offsets(std::span<const Lifetime> lifetimes);

/// A place in memory that another lifetime needs at other times.
struct Hosted {
  std::int64_t host = -1;  ///< number of the host; -1: no place
  std::size_t offset = 0;
};

/// Places in the memory of `hosts` for those that fit, by lifetime: the largest first, each in the
/// first host that has a gap.
std::vector<Hosted> plan_hosted(std::span<const Lifetime> hosts,
                                std::span<const Lifetime> lifetimes);

}  // namespace shardwise
