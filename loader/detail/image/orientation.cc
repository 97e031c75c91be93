#include "shardwise/loader/detail/image/orientation.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace shardwise::detail {
namespace {

using Bytes = std::span<const std::byte>;

// Unsigned, of `count` bytes; 0 past the end.
std::size_t number_at(Bytes bytes, std::size_t offset, std::size_t count, bool big_end) {
  if (offset > bytes.size() || count > bytes.size() - offset) return 0;
  std::size_t value = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t at = offset + (big_end ? i : count - 1 - i);
    value = value << 8 | std::to_integer<std::size_t>(bytes[at]);
  }
  return value;
}

bool has_text(Bytes bytes, std::size_t offset, std::string_view text) {
  return offset <= bytes.size() && text.size() <= bytes.size() - offset &&
         std::memcmp(bytes.data() + offset, text.data(), text.size()) == 0;
}

// The part of a file from `offset` on, or as much of it as there is.
Bytes part_of(Bytes bytes, std::size_t offset, std::size_t size) {
  offset = std::min(offset, bytes.size());
  return bytes.subspan(offset, std::min(size, bytes.size() - offset));
}

// The TIFF structure in a JPEG's or PNG's EXIF data; empty if it is missing.
Bytes exif_of(Bytes encoded) {
  constexpr std::string_view kExif("Exif\0\0", 6);
  if (has_text(encoded, 0, "\xff\xd8")) {
    for (std::size_t at = 2; number_at(encoded, at, 1, true) == 0xff;) {
      const std::size_t marker = number_at(encoded, at + 1, 1, true);
      if (marker == 0xff) {  // filling
        ++at;
        continue;
      }
      const std::size_t size = number_at(encoded, at + 2, 2, true);
      if (marker == 0xda || size < 2) break;  // pixels follow
      if (marker == 0xe1 && has_text(encoded, at + 4, kExif)) {
        const std::size_t skipped = 2 + kExif.size();
        return part_of(encoded, at + 2 + skipped, size - std::min(size, skipped));
      }
      at += 2 + size;
    }
    return {};
  }
  constexpr std::size_t kSignature = 8, kAround = 12;  // of a chunk: length, type, checksum
  for (std::size_t at = kSignature; at + kAround <= encoded.size();) {
    const std::size_t size = number_at(encoded, at, 4, true);
    if (has_text(encoded, at + 4, "eXIf")) return part_of(encoded, at + 8, size);
    at += kAround + size;
  }
  return {};
}

/// An image with its pixels moved to upright positions.
class UprightImage final : public EncodedImage {
 public:
  UprightImage(std::unique_ptr<EncodedImage> image, int orientation)
      : image_(std::move(image)),
        swaps_(orientation >= 5),
        flips_rows_(orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7),
        flips_columns_(orientation == 2 || orientation == 3 || orientation == 7 ||
                       orientation == 8) {
    size_ = image_->size();
    if (swaps_) std::swap(size_.height, size_.width);
  }

  void decode(int channels, std::byte* out) override {
    const auto [height, width] = image_->size();
    const auto pixel = static_cast<std::size_t>(channels);
    std::vector<std::byte> stored(static_cast<std::size_t>(height * width) * pixel);
    image_->decode(channels, stored.data());
    for (std::int64_t y = 0; y < size_.height; ++y) {
      for (std::int64_t x = 0; x < size_.width; ++x, out += pixel) {
        const std::int64_t row = swaps_ ? x : y, column = swaps_ ? y : x;
        const std::int64_t from = (flips_rows_ ? height - 1 - row : row) * width +
                                  (flips_columns_ ? width - 1 - column : column);
        std::memcpy(out, stored.data() + static_cast<std::size_t>(from) * pixel, pixel);
      }
    }
  }

 private:
  std::unique_ptr<EncodedImage> image_;
  bool swaps_, flips_rows_, flips_columns_;  // flips are of the stored image
};

}  // namespace

int exif_orientation(std::span<const std::byte> encoded) {
  constexpr std::size_t kOrientation = 0x0112, kShort = 3, kEntryBytes = 12;
  const Bytes tiff = exif_of(encoded);
  const bool big_end = has_text(tiff, 0, std::string_view("MM\0*", 4));
  if (!big_end && !has_text(tiff, 0, std::string_view("II*\0", 4))) return 1;
  const std::size_t directory = number_at(tiff, 4, 4, big_end);
  const std::size_t entries = number_at(tiff, directory, 2, big_end);
  for (std::size_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + i * kEntryBytes;
    if (number_at(tiff, entry, 2, big_end) != kOrientation) continue;
    const bool is_short = number_at(tiff, entry + 2, 2, big_end) == kShort;
    const std::size_t value = number_at(tiff, entry + 8, is_short ? 2 : 4, big_end);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

std::unique_ptr<EncodedImage> upright(std::unique_ptr<EncodedImage> image, int orientation) {
  if (orientation == 1) return image;
  return std::make_unique<UprightImage>(std::move(image), orientation);
}

}  // namespace shardwise::detail
