#include "shardwise/loader/detail/image/orientation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <string>

#include "loader/images/image_files.h"
#include "loader/sources/source_reads.h"
#include "shardwise/loader/open_source.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using ::testing::HasSubstr;

std::string big_end(std::uint32_t value, int bytes) {
  std::string all;
  for (int i = bytes - 1; i >= 0; --i) all += static_cast<char>(value >> (8 * i));
  return all;
}

// A TIFF structure of two entries; the second is the orientation.
std::string tiff(std::uint32_t orientation, bool is_big) {
  const auto number = [&](std::uint32_t value, int bytes) {
    const std::string big = big_end(value, bytes);
    return is_big ? big : std::string(big.rbegin(), big.rend());
  };
  return (is_big ? "MM" : "II") + number(42, 2) + number(8, 4) + number(2, 2) +  //
         number(0x0100, 2) + number(4, 2) + number(1, 4) + number(7, 4) +        //
         number(0x0112, 2) + number(3, 2) + number(1, 4) + number(orientation, 2) + number(0, 2) +
         number(0, 4);
}

Bytes with_exif(const Bytes& image, const std::string& exif) {
  const bool is_png = image[0] == std::byte{0x89};
  std::string part;
  if (is_png) {
    const std::string chunk = "eXIf" + exif;
    const auto crc =
        ::crc32(0, reinterpret_cast<const Bytef*>(chunk.data()), static_cast<uInt>(chunk.size()));
    part = big_end(static_cast<std::uint32_t>(exif.size()), 4) + chunk +
           big_end(static_cast<std::uint32_t>(crc), 4);
  } else {
    const std::string body = std::string("Exif\0\0", 6) + exif;
    part = "\xff\xe1" + big_end(static_cast<std::uint32_t>(body.size() + 2), 2) + body;
  }
  const std::ptrdiff_t at = is_png ? 8 + 25 : 2;  // after IHDR, or after the first marker
  return Bytes(image.begin(), image.begin() + at) + to_bytes(part) +
         Bytes(image.begin() + at, image.end());
}

/// Pixels of one byte. Turned as the constants of Pillow's Image.Transpose say.
struct Pixels {
  std::size_t height, width;
  Bytes all;

  bool operator==(const Pixels&) const = default;
};

Pixels rotate_90(const Pixels& in) {  // counter clockwise
  Pixels out{in.width, in.height, Bytes(in.all.size())};
  for (std::size_t y = 0; y < out.height; ++y) {
    for (std::size_t x = 0; x < out.width; ++x) {
      out.all[y * out.width + x] = in.all[x * in.width + in.width - 1 - y];
    }
  }
  return out;
}

Pixels flip_left_right(const Pixels& in) {
  Pixels out = in;
  for (std::size_t y = 0; y < in.height; ++y) {
    for (std::size_t x = 0; x < in.width; ++x) {
      out.all[y * in.width + x] = in.all[y * in.width + in.width - 1 - x];
    }
  }
  return out;
}

// What ImageOps.exif_transpose does for an orientation.
Pixels upright_pixels(const Pixels& in, int orientation) {
  const Pixels once = rotate_90(in), twice = rotate_90(once), thrice = rotate_90(twice);
  switch (orientation) {
    case 2:
      return flip_left_right(in);
    case 3:
      return twice;
    case 4:  // FLIP_TOP_BOTTOM
      return flip_left_right(twice);
    case 5:  // TRANSPOSE
      return flip_left_right(thrice);
    case 6:  // ROTATE_270
      return thrice;
    case 7:  // TRANSVERSE
      return flip_left_right(once);
    case 8:
      return once;
    default:
      return in;
  }
}

TEST(Orientation, TurnsImagesUprightIfAsked) {
  constexpr std::size_t kHeight = 9, kWidth = 14;
  const Bytes pixels = pattern_pixels(kHeight, kWidth, 1);
  const Bytes png = make_png(kHeight, kWidth, 1, pixels);
  const Bytes jpeg = make_jpeg({kHeight, kWidth, 1, smooth_pixels(kHeight, kWidth, 1)});
  const Pixels stored[] = {{kHeight, kWidth, pixels},
                           {kHeight, kWidth, plain_jpeg_pixels(jpeg, 1)}};
  for (const bool is_png : {true, false}) {
    for (const bool is_big : {true, false}) {
      for (std::uint32_t orientation = 0; orientation <= 9; ++orientation) {
        SCOPED_TRACE(orientation);
        const TempDir dir;
        write_file(dir / "0.png", with_exif(is_png ? png : jpeg, tiff(orientation, is_big)));
        const auto read = [&](const std::string& options) {
          const auto source =
              open_source("images:" + dir.path().string() + "?channels=1" + options);
          const Shape& shape = source->fields()[0].shape;
          Bytes all(num_bytes(shape, 1));
          source->read_box(0, 0, {all.data(), Box::whole(shape)});
          return Pixels{as_size(shape[0]), as_size(shape[1]), std::move(all)};
        };
        EXPECT_EQ(read(""), stored[is_png ? 0 : 1]);
        EXPECT_EQ(read("&exif_transpose=yes"),
                  upright_pixels(stored[is_png ? 0 : 1], static_cast<int>(orientation)));
      }
    }
  }
}

TEST(Orientation, IsOneIfTheDataDoNotSayOrAreCut) {
  const Bytes jpeg = make_jpeg({4, 4, 1, smooth_pixels(4, 4, 1)});
  EXPECT_EQ(detail::exif_orientation(jpeg), 1);
  EXPECT_EQ(detail::exif_orientation(make_png(2, 2, 1, Bytes(4))), 1);
  for (const bool is_big : {true, false}) {
    const Bytes whole = with_exif(jpeg, tiff(6, is_big));
    EXPECT_EQ(detail::exif_orientation(whole), 6);
    for (std::size_t size = 0; size < whole.size(); ++size) {
      const int found = detail::exif_orientation(std::span(whole).first(size));
      EXPECT_TRUE(found == 1 || found == 6) << size;
    }
  }
}

TEST(Orientation, IsPartOfTheStagesThatAStateNames) {
  const TempDir dir;
  write_file(dir / "0.png", make_png(2, 3, 1, Bytes(6)));
  const std::string text = "images:" + dir.path().string() + "?channels=1&exif_transpose=";
  EXPECT_EQ(open_source(text + "yes")->describe(0), "images([2, 3, 1], upright)");
  EXPECT_EQ(open_source(text + "no")->describe(0), "images([2, 3, 1])");
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { open_source(text + "1"); }),
              HasSubstr("exif_transpose is \"1\", needed is \"yes\" or \"no\""));
}

}  // namespace
}  // namespace shardwise
