#include "shardwise/checkpoint/detail/codec/codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "checkpoint/codec/decoded.h"
#include "shardwise/shard/error.h"
#include "testing/errors.h"

namespace shardwise::detail {
namespace {

using Bytes = std::vector<std::byte>;

Bytes random_bytes(std::size_t size, unsigned seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<std::uint64_t> words((size + 7) / 8);
  for (auto& word : words) word = random();
  Bytes bytes(size);
  if (size > 0) std::memcpy(bytes.data(), words.data(), size);
  return bytes;
}

// Shaped like weights: random mantissas, few exponents.
Bytes gaussian_floats(std::size_t count) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  Bytes bytes(count * 4);
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Bytes repeating_integers(std::size_t count) {
  Bytes bytes(count * 4);
  for (std::size_t i = 0; i < count; ++i) {
    const auto value = static_cast<std::uint32_t>(i % 1000 * 2654435761u);
    std::memcpy(bytes.data() + 4 * i, &value, 4);
  }
  return bytes;
}

Bytes encoded(const Bytes& chunk, std::size_t element_bytes, Effort effort) {
  Bytes out(chunk.size());
  out.resize(Encoder().encode(chunk, element_bytes, effort, out));
  return out;
}

TEST(Encoder, RefusesAnotherZstdThanItWasCompiledWith) {
  EXPECT_NO_THROW(Encoder());
  const std::string text = message_of(ErrorCode::unsupported, [] { check_zstd_version(16'007); });
  EXPECT_THAT(text, testing::MatchesRegex("compress chunks: found zstd 1\\.60\\.7, needed "
                                          "1\\.[0-9]+\\.[0-9]+, which this library was compiled "
                                          "with"));
}

TEST(Codec, DecodesWhatItEncoded) {
  Encoder encoder;
  Decoder decoder;
  for (const std::size_t element : {1u, 2u, 4u, 8u, 16u}) {
    for (const std::size_t count : {1u, 3u, 100u, 1024u, 4099u, 40000u}) {
      for (const auto effort : {Effort::huffman_only, Effort::matches, Effort::zstd_huffman}) {
        SCOPED_TRACE(testing::Message() << count << " elements of " << element);
        Bytes chunk = random_bytes(element * count);
        for (std::size_t i = 0; i < chunk.size(); ++i) {
          if (i % element != 0) chunk[i] &= std::byte{3};
        }
        Bytes out(chunk.size()), back(chunk.size());
        const std::size_t size = encoder.encode(chunk, element, effort, out);
        if (size == 0) continue;
        ASSERT_LT(size, chunk.size());
        decode(decoder, std::span(out).first(size), element, back);
        EXPECT_EQ(back, chunk);
      }
    }
  }
}

// Planes that are stored as they are come before, between and after coded ones, and reach over
// several blocks.
TEST(Codec, DecodesAnyMixtureOfRawAndCodedPlanes) {
  Encoder encoder;
  Decoder decoder;
  for (const std::size_t element : {1u, 2u, 4u, 8u, 16u}) {
    for (const std::size_t count : {8192u, 16'383u, 16'384u, 131'072u, 131'073u, 300'000u}) {
      for (std::size_t coded = 1; coded < std::size_t{1} << std::min<std::size_t>(element, 4);
           ++coded) {
        SCOPED_TRACE(testing::Message() << count << " of " << element << ", coded " << coded);
        Bytes chunk = random_bytes(element * count);
        for (std::size_t b = 0; b < element; ++b) {
          if ((coded >> b % 4 & 1) == 0) continue;
          for (std::size_t i = b; i < chunk.size(); i += element) chunk[i] &= std::byte{3};
        }
        Bytes out(chunk.size()), back(chunk.size());
        const std::size_t size = encoder.encode(chunk, element, Effort::huffman_only, out);
        ASSERT_GT(size, 0u);
        ASSERT_LT(size, chunk.size());
        decode(decoder, std::span(out).first(size), element, back);
        ASSERT_TRUE(back == chunk);
      }
    }
  }
}

TEST(Codec, GivesZeroForWhatDoesNotShrink) {
  EXPECT_TRUE(encoded({}, 4, Effort::huffman_only).empty());
  EXPECT_TRUE(encoded(random_bytes(1), 1, Effort::matches).empty());
  EXPECT_TRUE(encoded(random_bytes(1 << 16), 4, Effort::huffman_only).empty());
  EXPECT_TRUE(encoded(random_bytes(1 << 13), 4, Effort::huffman_only).empty());
  EXPECT_TRUE(encoded(random_bytes(1 << 16), 4, Effort::matches).empty());
}

TEST(Codec, GivesZeroWhereTheRoomDoesNotSuffice) {
  Encoder encoder;
  for (const std::size_t count : {1000u, 50'000u}) {
    const Bytes floats = gaussian_floats(count);
    const std::size_t size = encoded(floats, 4, Effort::huffman_only).size();
    ASSERT_GT(size, 0u);
    for (const std::size_t room : {std::size_t{0}, std::size_t{8}, size / 2, size - 1}) {
      Bytes out(room);
      EXPECT_EQ(encoder.encode(floats, 4, Effort::huffman_only, out), 0u) << room;
    }
  }
}

TEST(Codec, HuffmanCodingAloneServesFloats) {
  const Bytes floats = gaussian_floats(1 << 16);
  EXPECT_LE(encoded(floats, 4, Effort::huffman_only).size(),
            encoded(floats, 4, Effort::matches).size());
  const CodecChoice choice = CodecChooser().choose(Codec::automatic, floats, 4);
  EXPECT_EQ(choice.codec, StoredCodec::zstd);
  EXPECT_EQ(choice.effort, Effort::huffman_only);
}

TEST(Codec, BlocksKeepToBytePlanes) {
  // The ratio of a size that is no multiple of zstd's block is that of one that is.
  const auto ratio = [](std::size_t count) {
    const Bytes floats = gaussian_floats(count);
    return static_cast<double>(floats.size()) /
           static_cast<double>(encoded(floats, 4, Effort::huffman_only).size());
  };
  EXPECT_NEAR(ratio(90'000), ratio(131'072), 0.004);
}

TEST(Codec, ChoosesMatchesForRepetitions) {
  const CodecChoice choice =
      CodecChooser().choose(Codec::automatic, repeating_integers(1 << 15), 4);
  EXPECT_EQ(choice.codec, StoredCodec::zstd);
  EXPECT_EQ(choice.effort, Effort::matches);
}

TEST(Codec, ChoosesNoneOnlyWhereNothingIsGained) {
  const Bytes noise = random_bytes(1 << 16);
  EXPECT_EQ(CodecChooser().choose(Codec::automatic, noise, 4).codec, StoredCodec::none);
  EXPECT_EQ(CodecChooser().choose(Codec::automatic, {}, 4).codec, StoredCodec::none);
  EXPECT_EQ(CodecChooser().choose(Codec::zstd, noise, 4).codec, StoredCodec::zstd);
  EXPECT_EQ(CodecChooser().choose(Codec::none, gaussian_floats(1 << 12), 4).codec,
            StoredCodec::none);
}

void expect_corrupt(const Bytes& stored, std::size_t chunk_bytes, const char* message) {
  Bytes out(chunk_bytes);
  try {
    Decoder decoder;
    decode(decoder, stored, 4, out);
    ADD_FAILURE() << "decoded, expected: " << message;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::corrupt);
    EXPECT_THAT(e.what(), testing::HasSubstr(message));
  }
}

TEST(Decoder, RefusesFramesThatAreNotExactlyTheChunk) {
  const Bytes frame = encoded(gaussian_floats(1000), 4, Effort::huffman_only);
  ASSERT_FALSE(frame.empty());
  expect_corrupt(frame, 3996, "holds 4000 bytes, the chunk has 3996");
  expect_corrupt(frame, 4004, "holds 4000 bytes, the chunk has 4004");
  expect_corrupt({}, 4000, "not a zstd frame");
  expect_corrupt(random_bytes(100), 4000, "not a zstd frame");

  Bytes longer = frame;
  longer.push_back(std::byte{0});
  expect_corrupt(longer, 4000, "ends after");
  Bytes twice = frame;
  twice.insert(twice.end(), frame.begin(), frame.end());
  expect_corrupt(twice, 4000, "ends after");
  for (const std::size_t size :
       {std::size_t{1}, std::size_t{6}, frame.size() / 2, frame.size() - 1}) {
    expect_corrupt(Bytes(frame.begin(), frame.begin() + static_cast<std::ptrdiff_t>(size)), 4000,
                   "zstd frame");
  }

  // A frame of 4 bytes without content size: single segment off, window 1 KiB, one raw block.
  const unsigned char unsized[] = {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x00, 0x21,
                                   0x00, 0x00, 1,    2,    3,    4};
  Bytes stored(sizeof unsized);
  std::memcpy(stored.data(), unsized, sizeof unsized);
  expect_corrupt(stored, 4, "does not state its content size");

  // A frame that claims 2^40 bytes: refused by its claim, before anything is allocated.
  const unsigned char bomb[] = {0x28, 0xb5, 0x2f, 0xfd, 0xc0, 0x70, 0, 0, 0,
                                0,    0,    1,    0,    0,    0x03, 0, 0};
  stored.resize(sizeof bomb);
  std::memcpy(stored.data(), bomb, sizeof bomb);
  expect_corrupt(stored, 4, "holds 1099511627776 bytes");
}

TEST(Decoder, NeverCrashesOnDamage) {
  const Bytes frame = encoded(gaussian_floats(2000), 4, Effort::huffman_only);
  std::mt19937 random(3);
  Decoder decoder;
  Bytes out(8000);
  for (int round = 0; round < 2000; ++round) {
    Bytes damaged = frame;
    for (int flips = 1 + static_cast<int>(random() % 4); flips > 0; --flips) {
      damaged[random() % damaged.size()] ^= static_cast<std::byte>(1u << (random() % 8));
    }
    try {
      decode(decoder, damaged, 4, out);  // the hash, not zstd, finds every change
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::corrupt);
    }
  }
  decode(decoder, frame, 4, out);
  EXPECT_EQ(out, gaussian_floats(2000));
}

}  // namespace
}  // namespace shardwise::detail
