#pragma once

#include <cstdint>

#include "shardwise/loader/loader_options.h"

namespace shardwise::detail {

/// An unsigned number of 128 bits.
__extension__ typedef unsigned __int128 Wide;

/// The part of sample number n in the delivery digest: A n + B n^2 + C n^3 mod 2^128. The constants
/// are the first hex digits after the point of pi, made odd. A sum of powers of the first N numbers
/// is a polynomial in N (Faulhaber's formulas), so the digest of all samples before number N takes
/// no loop. Different sets of numbers may have the same digest, but a loss or repeat goes unnoticed
/// only if digests agree in 128 bits by accident.
Wide digest_of_sample(std::int64_t number);

/// The sum of digest_of_sample over 0 .. end-1, in closed form. Requires end >= 0.
Wide digest_of_prefix(std::int64_t end);

constexpr DeliveryDigest to_digest(Wide sum) {
  return {static_cast<std::uint64_t>(sum >> 64), static_cast<std::uint64_t>(sum)};
}
constexpr Wide to_wide(const DeliveryDigest& digest) {
  return static_cast<Wide>(digest.high) << 64 | digest.low;
}

}  // namespace shardwise::detail
