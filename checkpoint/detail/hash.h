#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shardwise::detail {

struct Hash128 {
  std::uint64_t high = 0, low = 0;

  bool operator==(const Hash128&) const = default;
};

/// XXH3 with seed 0.
std::uint64_t hash64(const std::byte* data, std::size_t size);
Hash128 hash128(const std::byte* data, std::size_t size);

/// Lower-case hex, most significant digit first; 16 or 32 digits.
std::string to_hex(std::uint64_t hash);
std::string to_hex(Hash128 hash);

/// Inverse; false where the text is not exactly so many lower-case hex digits.
bool from_hex(std::string_view text, std::uint64_t& hash);
bool from_hex(std::string_view text, Hash128& hash);

}  // namespace shardwise::detail
