#include "shardwise/storage/hash.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace shardwise {
namespace {

std::vector<std::byte> counting_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  return bytes;
}

// From xxHash's own test vectors: XXH3 of nothing.
TEST(Hash, IsXxh3WithSeedZero) {
  EXPECT_EQ(to_hex(hash64(nullptr, 0)), "2d06800538d394c2");
  EXPECT_EQ(to_hex(hash128(nullptr, 0)), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash, OfPartsEqualsTheHashOfTheWhole) {
  const auto bytes = counting_bytes(5000);
  for (const std::size_t part : {1u, 17u, 240u, 256u, 1024u, 4999u, 5000u}) {
    SCOPED_TRACE(part);
    Hasher128 hasher;
    for (std::size_t at = 0; at < bytes.size(); at += part) {
      hasher.update(bytes.data() + at, std::min(part, bytes.size() - at));
    }
    EXPECT_EQ(hasher.digest(), hash128(bytes.data(), bytes.size()));
  }
  EXPECT_EQ(Hasher128().digest(), hash128(nullptr, 0));
}

TEST(Hash, ChangesWithEveryBit) {
  auto bytes = counting_bytes(300);
  const auto h64 = hash64(bytes.data(), bytes.size());
  const auto h128 = hash128(bytes.data(), bytes.size());
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    EXPECT_NE(hash64(bytes.data(), bytes.size()), h64) << bit;
    EXPECT_NE(hash128(bytes.data(), bytes.size()), h128) << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
  }
}

TEST(Hash, HexGoesBothWays) {
  std::uint64_t h64 = 0;
  ASSERT_TRUE(from_hex("00000000deadbeef", h64));
  EXPECT_EQ(h64, 0xdeadbeefu);
  EXPECT_EQ(to_hex(h64), "00000000deadbeef");
  Hash128 h128;
  ASSERT_TRUE(from_hex("0123456789abcdeffedcba9876543210", h128));
  EXPECT_EQ(h128, (Hash128{0x0123456789abcdefu, 0xfedcba9876543210u}));
  EXPECT_EQ(to_hex(h128), "0123456789abcdeffedcba9876543210");
}

TEST(Hash, RefusesHexThatIsNotExactlySoLong) {
  std::uint64_t h64 = 1;
  Hash128 h128{2, 3};
  for (const char* text : {"", "0", "0123456789abcde", "0123456789abcdef0", "0123456789ABCDEF",
                           "0123456789abcdeg", "0x23456789abcdef", " 123456789abcdef"}) {
    EXPECT_FALSE(from_hex(text, h64)) << text;
  }
  for (const std::string text : {"0123456789abcdef", "0123456789abcdeffedcba987654321",
                                 "0123456789abcdeffedcba987654321x"}) {
    EXPECT_FALSE(from_hex(text, h128)) << text;
  }
  EXPECT_EQ(h64, 1u);
  EXPECT_EQ(h128, (Hash128{2, 3}));
}

// By this a save that has computed one has both (checkpoint_format.md, "Content table").
TEST(Hash, OfMoreThan240BytesTheLowHalfOf128IsThatOf64) {
  std::vector<std::byte> bytes(5000);
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i % 251);
  for (std::size_t size = 241; size <= bytes.size(); size += 1 + size / 7) {
    EXPECT_EQ(hash128(bytes.data(), size).low, hash64(bytes.data(), size)) << size;
  }
  EXPECT_NE(hash128(bytes.data(), 240).low, hash64(bytes.data(), 240));
}

}  // namespace
}  // namespace shardwise
