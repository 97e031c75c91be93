#include "shardwise/checkpoint/detail/hdf5/hdf5_bytes.h"

#include <cassert>

namespace shardwise::detail {
namespace {

std::uint32_t word(const std::byte* at) {
  std::uint32_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

}  // namespace

std::uint32_t hdf5_checksum(std::span<const std::byte> bytes) {
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  std::uint32_t a = 0xdeadbeef + static_cast<std::uint32_t>(left), b = a, c = a;
  while (left > 12) {
    a += word(at);
    b += word(at + 4);
    c += word(at + 8);
    a -= c, a ^= std::rotl(c, 4), c += b;
    b -= a, b ^= std::rotl(a, 6), a += c;
    c -= b, c ^= std::rotl(b, 8), b += a;
    a -= c, a ^= std::rotl(c, 16), c += b;
    b -= a, b ^= std::rotl(a, 19), a += c;
    c -= b, c ^= std::rotl(b, 4), b += a;
    at += 12;
    left -= 12;
  }
  if (left == 0) return c;
  std::byte last[12] = {};
  std::memcpy(last, at, left);
  a += word(last);
  b += word(last + 4);
  c += word(last + 8);
  c ^= b, c -= std::rotl(b, 14);
  a ^= c, a -= std::rotl(c, 11);
  b ^= a, b -= std::rotl(a, 25);
  c ^= b, c -= std::rotl(b, 16);
  a ^= c, a -= std::rotl(c, 4);
  b ^= a, b -= std::rotl(a, 14);
  c ^= b, c -= std::rotl(b, 24);
  return c;
}

std::uint64_t Hdf5Bytes::align() {
  put_zeros((8 - here() % 8) % 8);
  return here();
}

void Hdf5Bytes::put_sized(std::uint64_t value, std::size_t size) {
  put(std::as_bytes(std::span(&value, 1)).first(size));
}

void Hdf5Bytes::put_terminated(std::string_view text) {
  put(text);
  put(std::uint8_t{0});
}

void Hdf5Bytes::patch(std::uint64_t address, std::span<const std::byte> bytes) {
  assert(address >= address_ && address + bytes.size() <= here());
  if (!bytes.empty())
    std::memcpy(memory_.data() + (address - address_), bytes.data(), bytes.size());
}

}  // namespace shardwise::detail
