#include "shardwise/loader/detail/files/crc32c.h"

#include <array>
#include <cstring>

namespace shardwise::detail {
namespace {

constexpr std::uint32_t kReversedPolynomial = 0x82f63b78;

using Tables = std::array<std::array<std::uint32_t, 256>, 8>;

// "Slicing by 8" (Kounavis and Berry, 2005): table k has the effect of a byte with k more bytes
// after it.
constexpr Tables make_tables() {
  Tables tables{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReversedPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (std::size_t k = 1; k < 8; ++k) {
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const std::uint32_t before = tables[k - 1][byte];
      tables[k][byte] = (before >> 8) ^ tables[0][before & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = make_tables();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t crc32c_by_instruction(
    std::span<const std::byte> data) {
  std::uint64_t crc = 0xffffffff;
  std::size_t at = 0;
  for (; data.size() - at >= 8; at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data() + at, sizeof word);
    crc = __builtin_ia32_crc32di(crc, word);
  }
  auto rest = static_cast<std::uint32_t>(crc);
  for (; at < data.size(); ++at) {
    rest = __builtin_ia32_crc32qi(rest, std::to_integer<unsigned char>(data[at]));
  }
  return ~rest;
}
#endif

}  // namespace

std::uint32_t crc32c_by_tables(std::span<const std::byte> data) {
  std::uint32_t crc = 0xffffffff;
  std::size_t at = 0;
  const auto byte_at = [&](std::size_t i) { return std::to_integer<std::uint32_t>(data[at + i]); };
  for (; data.size() - at >= 8; at += 8) {
    crc ^= byte_at(0) | byte_at(1) << 8 | byte_at(2) << 16 | byte_at(3) << 24;
    crc = kTables[7][crc & 0xff] ^ kTables[6][crc >> 8 & 0xff] ^ kTables[5][crc >> 16 & 0xff] ^
          kTables[4][crc >> 24] ^ kTables[3][byte_at(4)] ^ kTables[2][byte_at(5)] ^
          kTables[1][byte_at(6)] ^ kTables[0][byte_at(7)];
  }
  for (; at < data.size(); ++at) crc = (crc >> 8) ^ kTables[0][(crc ^ byte_at(0)) & 0xff];
  return ~crc;
}

std::uint32_t crc32c(std::span<const std::byte> data) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return crc32c_by_instruction(data);
#endif
  return crc32c_by_tables(data);
}

}  // namespace shardwise::detail
