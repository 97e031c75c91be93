#include "shardwise/loader/detail/image/encoded_image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cstdint>
#include <random>
#include <string>

#include "loader/images/image_files.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using detail::ImageSize;
using detail::open_image;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr std::int64_t kMostPixels = 1 << 20;

Bytes decoded(const Bytes& encoded, int channels) {
  const auto image = open_image(encoded, kMostPixels);
  const ImageSize size = image->size();
  Bytes out(static_cast<std::size_t>(size.height * size.width * channels) + 1, std::byte{0xa5});
  image->decode(channels, out.data());
  EXPECT_EQ(out.back(), std::byte{0xa5});
  out.pop_back();
  return out;
}

struct Color {
  std::uint32_t red, green, blue, alpha;
};

std::uint32_t to_8_bits(std::uint32_t sample, int depth) {
  if (depth == 16) return (sample * 255 + 32767) / 65535;
  return sample * 255 / ((1U << depth) - 1);
}

// Color of a pixel of a PNG.
Color color_of(const PngContent& content, std::size_t pixel) {
  const auto channels = static_cast<std::size_t>(png_channels(content.color_type));
  const std::uint16_t* raw = content.samples.data() + pixel * channels;
  if (content.color_type == 3) {
    const auto& color = content.palette[raw[0]];
    const bool has_alpha = raw[0] < content.palette_alpha.size();
    return {color[0], color[1], color[2], has_alpha ? content.palette_alpha[raw[0]] : 255U};
  }
  const auto sample = [&](std::size_t i) { return to_8_bits(raw[i], content.depth); };
  const bool colored = content.color_type == 2 || content.color_type == 6;
  Color color{sample(0), sample(colored ? 1 : 0), sample(colored ? 2 : 0), 255};
  if (content.color_type >= 4) color.alpha = sample(channels - 1);
  if (!content.transparent.empty() &&
      std::equal(content.transparent.begin(), content.transparent.end(), raw)) {
    color.alpha = 0;
  }
  return color;
}

Bytes expected_pixels(const PngContent& content, int channels) {
  Bytes all;
  for (std::size_t i = 0; i < std::size_t{content.height} * content.width; ++i) {
    const Color color = color_of(content, i);
    if (channels == 1) {
      const bool grey = color.red == color.green && color.green == color.blue;
      const double weighed = 0.299 * color.red + 0.587 * color.green + 0.114 * color.blue;
      all.push_back(
          static_cast<std::byte>(grey ? color.red : static_cast<unsigned>(weighed + 0.5)));
      continue;
    }
    for (const std::uint32_t value : {color.red, color.green, color.blue}) {
      all.push_back(static_cast<std::byte>(value));
    }
    if (channels == 4) all.push_back(static_cast<std::byte>(color.alpha));
  }
  return all;
}

PngContent random_png(int color_type, int depth, bool interlaced, std::mt19937& random) {
  PngContent content{static_cast<std::uint32_t>(random() % 11 + 1),
                     static_cast<std::uint32_t>(random() % 11 + 1), color_type, depth};
  content.interlaced = interlaced;
  if (color_type == 3) {
    for (int i = 0; i < 1 << depth; ++i) {
      content.palette.push_back({static_cast<std::uint8_t>(random()),
                                 static_cast<std::uint8_t>(random()),
                                 static_cast<std::uint8_t>(random())});
    }
    for (std::size_t i = random() % content.palette.size(); i > 0; --i) {
      content.palette_alpha.push_back(static_cast<std::uint8_t>(random()));
    }
  }
  const std::size_t samples = std::size_t{content.height} * content.width *
                              static_cast<std::size_t>(png_channels(color_type));
  for (std::size_t i = 0; i < samples; ++i) {
    content.samples.push_back(static_cast<std::uint16_t>(random() % (1U << depth)));
  }
  if (color_type == 0 && random() % 2 == 0) content.transparent = {content.samples[0]};
  if (color_type == 2 && random() % 2 == 0) {
    content.transparent = {content.samples[0], content.samples[1], content.samples[2]};
  }
  return content;
}

TEST(PngImage, ReadsEveryKindAsItsPixelsMean) {
  const struct {
    int color_type;
    std::vector<int> depths;
  } kinds[] = {{0, {1, 2, 4, 8, 16}}, {2, {8, 16}}, {3, {1, 2, 4, 8}}, {4, {8, 16}}, {6, {8, 16}}};
  std::mt19937 random(1);
  for (const auto& kind : kinds) {
    for (const int depth : kind.depths) {
      for (int i = 0; i < 24; ++i) {
        const PngContent content = random_png(kind.color_type, depth, i % 2 == 1, random);
        const Bytes png = make_png(content);
        const ImageSize size{content.height, content.width};
        EXPECT_EQ(open_image(png, kMostPixels)->size(), size);
        for (const int channels : {1, 3, 4}) {
          const Bytes found = decoded(png, channels), expected = expected_pixels(content, channels);
          ASSERT_EQ(found.size(), expected.size());
          for (std::size_t at = 0; at < found.size(); ++at) {
            // Luma is rounded in 16 bits of fraction.
            ASSERT_NEAR(std::to_integer<int>(found[at]), std::to_integer<int>(expected[at]),
                        channels == 1 ? 1 : 0)
                << "type " << kind.color_type << ", depth " << depth << ", " << channels;
          }
        }
      }
    }
  }
}

TEST(PngImage, LumaIsPillows) {
  const Bytes png = make_png(1, 4, 3, bytes({255, 0, 0, 0, 255, 0, 0, 0, 255, 12, 200, 77}));
  EXPECT_EQ(decoded(png, 1), bytes({76, 150, 29, 130}));
}

std::uint32_t crc_of(const Bytes& all, std::size_t begin, std::size_t size) {
  return static_cast<std::uint32_t>(
      crc32(0, reinterpret_cast<const Bytef*>(all.data() + begin), static_cast<uInt>(size)));
}

void put_32(Bytes& all, std::size_t at, std::uint32_t value) {
  for (std::size_t i = 0; i < 4; ++i) all[at + i] = static_cast<std::byte>(value >> (24 - 8 * i));
}

// The header's size is replaced, and its checksum made right.
Bytes with_png_size(Bytes png, std::uint32_t height, std::uint32_t width) {
  put_32(png, 16, width);
  put_32(png, 20, height);
  put_32(png, 29, crc_of(png, 12, 17));
  return png;
}

TEST(PngImage, RefusesBombsByTheirHeaders) {
  const Bytes png = make_png(2, 2, 3, Bytes(12));
  EXPECT_THAT(message_of(ErrorCode::unsupported,
                         [&] { open_image(with_png_size(png, 1025, 1024), kMostPixels); }),
              HasSubstr("1025 x 1024 pixels, needed is at most 1048576"));
  EXPECT_THAT(
      message_of(ErrorCode::unsupported,
                 [&] { open_image(with_png_size(png, 0x7fffffff, 0x7fffffff), INT64_MAX / 8); }),
      HasSubstr("2147483647 x 2147483647 pixels"));
  // Few enough, but not in so few bytes.
  EXPECT_THAT(message_of(ErrorCode::corrupt,
                         [&] { open_image(with_png_size(png, 1024, 1024), kMostPixels); }),
              HasSubstr("too few for 1024 x 1024 pixels"));
  // As many bytes as a header could mean: it is the data that ends.
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { decoded(with_png_size(png, 40, 40), 3); }),
              HasSubstr("damaged PNG: "));
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { open_image(with_png_size(png, 0, 4), 100); }),
              HasSubstr("damaged PNG: "));
}

TEST(PngImage, PassesOverTextsProfilesAndUnknownChunks) {
  const Bytes png = make_png(3, 2, 1, pattern_pixels(3, 2, 1));
  Bytes chunk = bytes({0, 0, 0, 4}) + to_bytes("zTXtabc") + bytes({0, 0, 0, 0, 0});
  put_32(chunk, 12, crc_of(chunk, 4, 8));
  Bytes all = first_of(png, 33) + chunk;
  all.insert(all.end(), png.begin() + 33, png.end());
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(decoded(all, 1), pattern_pixels(3, 2, 1));
  all[46] = std::byte{1};  // its checksum
  EXPECT_EQ(decoded(all, 1), pattern_pixels(3, 2, 1));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(JpegImage, ReadsWhatLibjpegReads) {
  for (const bool progressive : {false, true}) {
    for (const int channels : {1, 3}) {
      for (const unsigned size : {1U, 7U, 16U, 33U}) {
        const Bytes jpeg =
            make_jpeg({.height = size,
                       .width = size + 3,
                       .channels = channels,
                       .pixels = smooth_pixels(size, size + 3, static_cast<std::size_t>(channels)),
                       .progressive = progressive,
                       .restart_interval = size % 2});
        EXPECT_EQ(decoded(jpeg, 1), plain_jpeg_pixels(jpeg, 1));
        const Bytes colors = plain_jpeg_pixels(jpeg, 3);
        EXPECT_EQ(decoded(jpeg, 3), colors);
        Bytes with_alpha;
        for (std::size_t i = 0; i < colors.size(); i += 3) {
          with_alpha.insert(with_alpha.end(), colors.begin() + static_cast<std::ptrdiff_t>(i),
                            colors.begin() + static_cast<std::ptrdiff_t>(i) + 3);
          with_alpha.push_back(std::byte{0xff});
        }
        EXPECT_EQ(decoded(jpeg, 4), with_alpha);
      }
    }
  }
}

TEST(JpegImage, ReadsWhatWasMeant) {
  const Bytes pixels = smooth_pixels(16, 24, 3);
  const Bytes jpeg = make_jpeg(
      {.height = 16, .width = 24, .channels = 3, .pixels = pixels, .quality = 100, .as_rgb = true});
  const Bytes found = decoded(jpeg, 3), grey = decoded(jpeg, 1);
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    ASSERT_NEAR(std::to_integer<int>(found[i]), std::to_integer<int>(pixels[i]), 3) << i;
  }
  for (std::size_t i = 0; i < grey.size(); ++i) {
    const auto at = [&](std::size_t c) { return 1.0 * std::to_integer<int>(pixels[3 * i + c]); };
    ASSERT_NEAR(std::to_integer<int>(grey[i]), 0.299 * at(0) + 0.587 * at(1) + 0.114 * at(2), 3);
  }
}

// Full ink of one kind takes away its light; black ink takes all.
TEST(JpegImage, TurnsInksIntoLight) {
  const struct {
    Bytes inks;  // cyan, magenta, yellow, black: from 0 (no ink) to 255 (full)
    Bytes light;
  } cases[] = {{bytes({0, 0, 0, 0}), bytes({255, 255, 255})},
               {bytes({255, 0, 0, 0}), bytes({0, 255, 255})},
               {bytes({0, 255, 0, 0}), bytes({255, 0, 255})},
               {bytes({0, 0, 255, 0}), bytes({255, 255, 0})},
               {bytes({0, 0, 0, 255}), bytes({0, 0, 0})},
               {bytes({51, 102, 153, 51}), bytes({163, 122, 82})}};
  for (const auto& c : cases) {
    for (const bool adobe : {false, true}) {
      Bytes pixels;
      for (int i = 0; i < 64; ++i) {
        for (const std::byte ink : c.inks) pixels.push_back(adobe ? ~ink : ink);
      }
      const Bytes jpeg = make_jpeg({.height = 8,
                                    .width = 8,
                                    .channels = 4,
                                    .pixels = pixels,
                                    .quality = 100,
                                    .adobe = adobe});
      const Bytes found = decoded(jpeg, 4), grey = decoded(jpeg, 1);
      EXPECT_EQ(decoded(jpeg, 3).size(), 64U * 3);
      for (std::size_t i = 0; i < 64; ++i) {
        for (std::size_t channel = 0; channel < 3; ++channel) {
          ASSERT_NEAR(std::to_integer<int>(found[4 * i + channel]),
                      std::to_integer<int>(c.light[channel]), 2);
        }
        ASSERT_EQ(found[4 * i + 3], std::byte{0xff});
        const auto light = [&](std::size_t k) { return 1.0 * std::to_integer<int>(c.light[k]); };
        ASSERT_NEAR(std::to_integer<int>(grey[i]),
                    0.299 * light(0) + 0.587 * light(1) + 0.114 * light(2), 3);
      }
    }
  }
}

Bytes small_jpeg(bool progressive = false) {
  return make_jpeg({.height = 19,
                    .width = 21,
                    .channels = 3,
                    .pixels = pattern_pixels(19, 21, 3),
                    .progressive = progressive});
}

std::size_t find_marker(const Bytes& jpeg, int marker) {
  for (std::size_t i = 0; i + 1 < jpeg.size(); ++i) {
    if (jpeg[i] == std::byte{0xff} && jpeg[i + 1] == static_cast<std::byte>(marker)) return i;
  }
  throw std::runtime_error("no such marker");
}

TEST(JpegImage, RefusesBombsByTheirHeaders) {
  Bytes jpeg = small_jpeg();
  const std::size_t frame = find_marker(jpeg, 0xc0);
  for (std::size_t i = 5; i < 9; ++i) jpeg[frame + i] = std::byte{0xfe};
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { open_image(jpeg, kMostPixels); }),
              HasSubstr("65278 x 65278 pixels, needed is at most 1048576"));
  // Each scan of a progressive JPEG is work for all pixels: repeat the last one.
  const Bytes scans = small_jpeg(true);
  std::size_t last = scans.size() - 2;
  while (scans[last] != std::byte{0xff} || scans[last + 1] != std::byte{0xda}) --last;
  const auto begin = scans.begin() + static_cast<std::ptrdiff_t>(last);
  Bytes bomb = first_of(scans, last);
  for (int i = 0; i < 600; ++i) bomb.insert(bomb.end(), begin, scans.end() - 2);
  bomb = bomb + bytes({0xff, 0xd9});
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { decoded(bomb, 3); }),
              HasSubstr("damaged JPEG: more than 500 scans"));
}

// A libjpeg that meets the end of its data makes up grey pixels and says so in a warning.
TEST(JpegImage, WarningsThatMeanMadeUpPixelsAreErrors) {
  const Bytes jpeg = small_jpeg();
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { decoded(first_of(jpeg, jpeg.size() - 60), 3); }),
              HasSubstr("damaged JPEG: Premature end of JPEG file"));
  const Bytes early = first_of(jpeg, jpeg.size() - 60) + bytes({0xff, 0xd9});
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { decoded(early, 3); }),
              HasSubstr("premature end of data segment"));
  // Bytes too many cost no pixel; data sets have them.
  const Bytes more = first_of(jpeg, jpeg.size() - 2) + bytes({1, 2, 3, 0xff, 0xd9});
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(decoded(more, 3), plain_jpeg_pixels(jpeg, 3));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

TEST(JpegImage, RefusesKindsThatLibjpegDoesNotRead) {
  Bytes jpeg = small_jpeg();
  const std::size_t frame = find_marker(jpeg, 0xc0);
  jpeg[frame + 4] = std::byte{12};  // bits per sample
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { decoded(jpeg, 3); }),
              HasSubstr("Unsupported JPEG data precision 12"));
  jpeg[frame + 4] = std::byte{8};
  jpeg[frame + 1] = std::byte{0xc3};  // lossless
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { decoded(jpeg, 3); }),
              HasSubstr("Unsupported JPEG process"));
}

TEST(EncodedImage, IsAPngOrJpeg) {
  for (const Bytes& bad :
       {Bytes(), bytes({0x89}), to_bytes("GIF89a"), Bytes(5000), bytes({0xff, 0xd8})}) {
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { open_image(bad, kMostPixels); }),
                HasSubstr("needed are those of a PNG (89 50 4e 47) or JPEG (ff d8 ff)"));
  }
}

// Cut off anywhere: an error, or all pixels as they were.
TEST(EncodedImage, CutAnywhereIsAnErrorOrAllPixels) {
  PngContent interlaced{9, 7, 2};
  for (const std::byte byte : pattern_pixels(9, 7, 3)) {
    interlaced.samples.push_back(std::to_integer<std::uint16_t>(byte));
  }
  interlaced.interlaced = true;
  for (const Bytes& image : {make_png(9, 7, 3, pattern_pixels(9, 7, 3)), make_png(interlaced),
                             small_jpeg(), small_jpeg(true)}) {
    const Bytes whole = decoded(image, 3);
    std::size_t errors = 0;
    for (std::size_t size = 0; size < image.size(); ++size) {
      // A copy of its own size lets a sanitizer see each byte too far.
      const Bytes part = first_of(image, size);
      try {
        EXPECT_EQ(decoded(part, 3), whole);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::corrupt) << error.what();
        ++errors;
      }
    }
    EXPECT_EQ(errors, image.size());  // today; pixels as they were would be no fault
  }
}

TEST(EncodedImage, ChangedAnywhereIsAnErrorOrAnImage) {
  std::mt19937 random(7);
  for (const Bytes& image :
       {make_png(9, 7, 3, pattern_pixels(9, 7, 3)), small_jpeg(), small_jpeg(true)}) {
    for (int i = 0; i < 1500; ++i) {
      Bytes changed = image;
      for (std::size_t n = random() % 3 + 1; n > 0; --n) {
        changed[random() % changed.size()] = static_cast<std::byte>(random());
      }
      try {
        decoded(changed, static_cast<int>(random() % 2 * 2 + 1));
      } catch (const Error& error) {
        EXPECT_THAT(error.code(), AnyOf(ErrorCode::corrupt, ErrorCode::unsupported));
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      }
    }
  }
}

}  // namespace
}  // namespace shardwise
