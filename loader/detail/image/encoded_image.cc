#include "shardwise/loader/detail/image/encoded_image.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

template <std::size_t N>
bool begins_with(std::span<const std::byte> bytes, const std::array<int, N>& magic) {
  return bytes.size() >= N &&
         std::equal(magic.begin(), magic.end(), bytes.begin(),
                    [](int a, std::byte b) { return a == std::to_integer<int>(b); });
}

}  // namespace

void check_pixels(const ImageSize& size, std::int64_t max_pixels) {
  if (size.height <= 0 || size.width <= 0) {
    throw Error(ErrorCode::corrupt,
                fmt::format("{} x {} pixels, needed is at least one", size.height, size.width));
  }
  if (size.height > max_pixels / size.width) {
    throw Error(ErrorCode::unsupported, fmt::format("{} x {} pixels, needed is at most {}",
                                                    size.height, size.width, max_pixels));
  }
}

std::unique_ptr<EncodedImage> open_image(std::span<const std::byte> encoded,
                                         std::int64_t max_pixels) {
  constexpr std::array kPng{0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a};
  constexpr std::array kJpeg{0xff, 0xd8, 0xff};
  if (begins_with(encoded, kPng)) return open_png(encoded, max_pixels);
  if (begins_with(encoded, kJpeg)) return open_jpeg(encoded, max_pixels);
  std::string first;
  for (const std::byte byte : encoded.first(std::min<std::size_t>(encoded.size(), 4))) {
    first += fmt::format(" {:02x}", std::to_integer<int>(byte));
  }
  throw Error(
      ErrorCode::corrupt,
      fmt::format("{} bytes that begin{}, needed are those of a PNG (89 50 4e 47) or JPEG (ff d8 "
                  "ff)",
                  encoded.size(), first.empty() ? " with nothing" : first));
}

}  // namespace shardwise::detail
