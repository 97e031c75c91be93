#pragma once

#include <cstdint>
#include <limits>

namespace shardwise::detail {

/// The number of a source's sample, counted over its epochs: epoch * size + record, at most 2^63 -
/// 1.
inline std::int64_t sample_number(std::int64_t epoch, std::int64_t size, std::int64_t record) {
  std::int64_t number = 0;
  if (__builtin_mul_overflow(epoch, size, &number) ||
      __builtin_add_overflow(number, record, &number)) {
    return std::numeric_limits<std::int64_t>::max();
  }
  return number;
}

/// The number of samples rounded up to whole epochs, for an order that may begin with any record.
inline std::int64_t whole_epochs(std::int64_t samples, std::int64_t size) {
  if (size == 0) return 0;
  return sample_number(samples / size + (samples % size != 0 ? 1 : 0), size, 0);
}

}  // namespace shardwise::detail
