#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace shardwise::detail {

/// Rows and columns of pixels.
struct ImageSize {
  std::int64_t height = 0, width = 0;

  bool operator==(const ImageSize&) const = default;
};

/// A PNG or JPEG in memory with its header already read. Errors state the problem, but name no
/// file. Thread-compatible.
class EncodedImage {
 public:
  virtual ~EncodedImage() = default;
  EncodedImage(const EncodedImage&) = delete;
  EncodedImage& operator=(const EncodedImage&) = delete;

  /// The size in the header: at most `max_pixels` of open_image().
  ImageSize size() const { return size_; }

  /// Writes size() pixels of `channels` bytes each, row-major: 1 (luma), 3 (red, green, blue) or 4
  /// (and alpha, 255 if the image has none). Alpha is dropped unless requested. May be called once.
  /// Throws corrupt, unsupported.
  virtual void decode(int channels, std::byte* out) = 0;

 protected:
  EncodedImage() = default;
  ImageSize size_;
};

/// The first bytes tell the format. `encoded` must outlive the result. Throws corrupt; unsupported
/// for more than `max_pixels`, before memory is taken for them.
std::unique_ptr<EncodedImage> open_image(std::span<const std::byte> encoded,
                                         std::int64_t max_pixels);

/// The two formats, for open_image().
std::unique_ptr<EncodedImage> open_png(std::span<const std::byte> encoded, std::int64_t max_pixels);
std::unique_ptr<EncodedImage> open_jpeg(std::span<const std::byte> encoded,
                                        std::int64_t max_pixels);

/// Throws corrupt if there are no pixels, unsupported if there are more than `max_pixels`.
void check_pixels(const ImageSize& size, std::int64_t max_pixels);

/// Luma of a colour by the weights of ITU-R 601-2, with 16 bits of fraction, as in Pillow.
constexpr std::byte luma(std::uint32_t red, std::uint32_t green, std::uint32_t blue) {
  return static_cast<std::byte>((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16);
}

}  // namespace shardwise::detail
