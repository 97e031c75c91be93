#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace shardwise::detail {

/// CRC-32C (Castagnoli, RFC 3720). Uses the processor's own instruction if it has one.
std::uint32_t crc32c(std::span<const std::byte> data);

/// As crc32c(), without that instruction.
std::uint32_t crc32c_by_tables(std::span<const std::byte> data);

}  // namespace shardwise::detail
