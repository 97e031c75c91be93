#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/shard/error.h"

namespace shardwise {

struct StatsOptions {
  int threads = 0;  ///< workers; 0: as many as the machine has cores

  /// Bars of the histogram, of equal width; 0: none. With them everything is read twice, as the
  /// range has to be known first.
  std::int64_t bars = 0;

  /// Of all logical bytes that are to be read.
  ProgressFunction progress = nullptr;
};

/// What the elements of a tensor look like. Of complex numbers it is their modulus.
struct TensorStats {
  std::int64_t elements = 0, nan = 0, infinities = 0, zeros = 0;

  // Of the numbers that are neither NaN nor infinite; NaN if there are none. i64 and u64 are exact.
  long double min, max, mean;
  long double deviation;  ///< the root of the mean of (x - mean)^2, as numpy.std

  /// The bars' counts; the first begins at `low`, the last ends at `high`, which it includes. As in
  /// numpy.histogram that is min to max, or half a unit to each side if these are equal.
  std::vector<std::int64_t> histogram;
  long double low, high;
};

/// Looks at tensors, given by their numbers in tensors(): one result for each. Same bits for any
/// number of threads. Memory is bounded. Throws invalid_argument for a number of bars that is
/// negative or over 10,000, and what the reader throws.
///
///   const std::size_t first[] = {0};
///   const long double mean = tensor_stats(reader, first)[0].mean;
std::vector<TensorStats> tensor_stats(const BoxReader& reader, std::span<const std::size_t> tensors,
                                      const StatsOptions& options = {});

}  // namespace shardwise
