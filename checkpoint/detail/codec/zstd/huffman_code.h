#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace shardwise::detail {

/// The longest code that zstd allows.
inline constexpr std::size_t kMaxCodeBits = 11;

using ByteCounts = std::array<std::uint32_t, 256>;

/// Bits of each byte value's code; 0 for values that do not occur.
using CodeLengths = std::array<std::uint8_t, 256>;

/// The lengths, at most kMaxCodeBits, of codes that make bytes with these counts shortest. Requires
/// two counts that are not zero. The package-merge algorithm: Larmore and Hirschberg, "A fast
/// algorithm for optimal length-limited Huffman codes", JACM 37 (1990).
CodeLengths code_lengths(const ByteCounts& counts);

/// Which code each value has (RFC 8878, section 4.2.1.3); the first bit is the highest.
std::array<std::uint16_t, 256> code_values(const CodeLengths& lengths);

/// The code as a block states it (RFC 8878, section 4.2.1); empty if it cannot be stated, which
/// is so for some codes of nearly all byte values.
std::vector<std::byte> describe_code(const CodeLengths& lengths);

}  // namespace shardwise::detail
