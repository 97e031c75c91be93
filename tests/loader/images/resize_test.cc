#include "shardwise/loader/detail/image/resize.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "loader/images/image_files.h"
#include "shardwise/storage/hash.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using detail::cropped;
using detail::ImageSize;
using detail::ScaledPart;
using detail::ScratchMemory;
using detail::stretched;
using ::testing::HasSubstr;

constexpr std::int64_t kPixels = 1 << 20;

Bytes resized(const Bytes& pixels, const ImageSize& size, int channels, const ScaledPart& part) {
  Bytes out(static_cast<std::size_t>(part.wanted.height * part.wanted.width * channels) + 1,
            std::byte{0xa5});
  ScratchMemory scratch;
  resize_image(pixels.data(), size, channels, part, kPixels, scratch, out.data());
  EXPECT_EQ(out.back(), std::byte{0xa5});
  out.pop_back();
  return out;
}

Bytes pattern(const ImageSize& size, int channels) {
  return pattern_pixels(static_cast<std::size_t>(size.height), static_cast<std::size_t>(size.width),
                        static_cast<std::size_t>(channels));
}

// One line of the result from one line of the image, as the formula says: in doubles.
double triangle_sum(const std::vector<double>& line, std::int64_t to, std::int64_t at) {
  const double scale = static_cast<double>(line.size()) / static_cast<double>(to);
  const double support = std::max(scale, 1.0);
  const double center = (static_cast<double>(at) + 0.5) * scale;
  double sum = 0, weights = 0;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const double weight =
        std::max(0.0, 1.0 - std::abs(static_cast<double>(i) + 0.5 - center) / support);
    sum += weight * line[i];
    weights += weight;
  }
  return sum / weights;
}

double brute_force(const Bytes& pixels, const ImageSize& size, int channels, const ImageSize& to,
                   std::int64_t y, std::int64_t x, int channel) {
  std::vector<double> column;
  for (std::int64_t row = 0; row < size.height; ++row) {
    std::vector<double> line;
    for (std::int64_t i = 0; i < size.width; ++i) {
      line.push_back(std::to_integer<int>(
          pixels[static_cast<std::size_t>((row * size.width + i) * channels + channel)]));
    }
    column.push_back(triangle_sum(line, to.width, x));
  }
  return triangle_sum(column, to.height, y);
}

TEST(ResizeImage, IsTheTriangleFilter) {
  const ImageSize sizes[] = {{1, 1}, {1, 9}, {8, 3}, {7, 7}, {13, 10}, {2, 31}};
  for (const int channels : {1, 3, 4}) {
    for (const ImageSize& from : sizes) {
      const Bytes pixels = pattern(from, channels);
      for (const ImageSize& to : sizes) {
        const Bytes found = resized(pixels, from, channels, stretched(to));
        std::size_t at = 0;
        for (std::int64_t y = 0; y < to.height; ++y) {
          for (std::int64_t x = 0; x < to.width; ++x) {
            for (int c = 0; c < channels; ++c) {
              // Half a step for each of two roundings.
              ASSERT_NEAR(std::to_integer<int>(found[at++]),
                          brute_force(pixels, from, channels, to, y, x, c), 1.01);
            }
          }
        }
      }
    }
  }
}

// Computed by Pillow 9.5, 11.3 and 12.0 (Image.resize((width, height), BILINEAR), channel by
// channel), and XXH3 of it. Pillow 13 gives others for 3 of these 20, all of tall images.
TEST(ResizeImage, IsPillowsToTheBit) {
  const struct {
    ImageSize from;
    int channels;
    ImageSize to;
    std::uint64_t hash;
  } cases[] = {
      {{5, 7}, 3, {3, 4}, 0x8d235705d97706ca},     {{5, 7}, 1, {10, 14}, 0xe4f7f4f6d1d450ea},
      {{64, 48}, 3, {17, 29}, 0x728c1b5cc6b540b8}, {{17, 29}, 4, {64, 48}, 0xeae54ebb9b30725f},
      {{100, 3}, 3, {7, 7}, 0x2f053f890dfb0090},   {{3, 100}, 1, {7, 7}, 0xe0b11e966bebf2bb},
      {{31, 33}, 3, {31, 12}, 0x0f6485f4ee7b7f62}, {{31, 33}, 3, {9, 33}, 0x15d4c50f860040d9},
      {{1, 1}, 3, {4, 5}, 0xa9bce32e77ced40e},     {{200, 300}, 3, {224, 224}, 0xcc4c5d93147321f8},
      {{9, 9}, 1, {1, 1}, 0x5bdd139269f447c1},     {{2, 1000}, 3, {3, 2}, 0xcf790859b41bd825},
  };
  for (const auto& c : cases) {
    const Bytes found = resized(pattern(c.from, c.channels), c.from, c.channels, stretched(c.to));
    EXPECT_EQ(hash64(found.data(), found.size()), c.hash)
        << c.from.height << " x " << c.from.width << " to " << c.to.height << " x " << c.to.width;
  }
  const Bytes small = resized(pattern({5, 7}, 3), {5, 7}, 3, stretched({3, 4}));
  EXPECT_EQ(first_of(small, 12), bytes({107, 110, 115, 144, 66, 147, 129, 73, 136, 96, 170, 143}));
}

// Computed by Pillow: the resize and crop that torchvision's Resize(n) and CenterCrop(n) make.
TEST(ResizeImage, CropsAsTorchvision) {
  const struct {
    ImageSize from;
    int channels;
    std::int64_t to;
    std::uint64_t hash;
  } cases[] = {
      {{50, 75}, 3, 32, 0x1a7c3db3893835b0}, {{75, 50}, 3, 32, 0x224461aa48774da4},
      {{64, 64}, 1, 33, 0x0af813e840b288aa}, {{40, 41}, 3, 40, 0xcd8e38573f26d246},
      {{41, 40}, 3, 40, 0x27028fe2ad5ad7b3}, {{40, 43}, 4, 40, 0x70bea991fb122177},
      {{20, 61}, 3, 48, 0x715e622da91dddce}, {{61, 20}, 1, 7, 0xdf29879635ceaa3e},
  };
  for (const auto& c : cases) {
    const Bytes found =
        resized(pattern(c.from, c.channels), c.from, c.channels, cropped(c.from, {c.to, c.to}));
    EXPECT_EQ(hash64(found.data(), found.size()), c.hash) << c.from.height << " x " << c.from.width;
  }
}

// The part that is wanted is the part of the whole, wherever it is.
TEST(ResizeImage, PartsAreThoseOfTheWhole) {
  const ImageSize from{13, 17};
  for (const ImageSize& full :
       {ImageSize{7, 29}, ImageSize{13, 17}, ImageSize{13, 9}, ImageSize{20, 17}}) {
    const Bytes pixels = pattern(from, 3);
    const Bytes whole = resized(pixels, from, 3, stretched(full));
    for (std::int64_t top = 0; top < full.height; top += 2) {
      for (std::int64_t left = 0; left < full.width; left += 3) {
        const ScaledPart part{
            full, top, left, {full.height - top - (full.height - top) / 3, full.width - left}};
        const Bytes found = resized(pixels, from, 3, part);
        Bytes expected;
        for (std::int64_t y = 0; y < part.wanted.height; ++y) {
          const std::int64_t begin = ((top + y) * full.width + left) * 3;
          expected.insert(expected.end(), whole.begin() + begin,
                          whole.begin() + begin + part.wanted.width * 3);
        }
        EXPECT_EQ(found, expected) << top << " " << left;
      }
    }
  }
}

TEST(ResizeImage, CropsCoverWhatIsWanted) {
  for (std::int64_t h = 1; h < 40; h += 3) {
    for (std::int64_t w = 1; w < 40; w += 4) {
      for (const ImageSize& wanted : {ImageSize{8, 8}, ImageSize{3, 20}, ImageSize{20, 3}}) {
        const ScaledPart part = cropped({h, w}, wanted);
        EXPECT_TRUE(part.full.height == wanted.height || part.full.width == wanted.width);
        EXPECT_GE(part.top, 0);
        EXPECT_GE(part.left, 0);
        EXPECT_LE(part.top + wanted.height, part.full.height) << h << " " << w;
        EXPECT_LE(part.left + wanted.width, part.full.width) << h << " " << w;
      }
    }
  }
}

TEST(ResizeImage, RefusesWhatWouldTakeTooMuchMemoryInBetween) {
  ScratchMemory scratch;
  const Bytes column(5000);
  Bytes out(std::size_t{2} * 5000);
  EXPECT_THAT(message_of(ErrorCode::unsupported,
                         [&] {
                           resize_image(column.data(), {5000, 1}, 1, stretched({2, 5000}),
                                        5000 * 4999, scratch, out.data());
                         }),
              HasSubstr("needed is 5000 x 5000 in between, at most 24995000"));
}

}  // namespace
}  // namespace shardwise
