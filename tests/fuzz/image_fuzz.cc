// Images: any bytes are decoded to as many pixels as their header says, and scaled, or refused with
// an Error. The first byte says to what.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "fuzz/require.h"
#include "shardwise/loader/detail/image/encoded_image.h"
#include "shardwise/loader/detail/image/resize.h"
#include "shardwise/loader/detail/scratch_memory.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

// More would only make it slow.
constexpr std::int64_t kMostPixels = 1 << 14;

void check(unsigned how, std::span<const std::byte> encoded) {
  constexpr int kChannels[] = {1, 3, 4};
  const int channels = kChannels[how % 3];
  const auto image = detail::open_image(encoded, kMostPixels);
  const detail::ImageSize size = image->size();
  require(size.height > 0 && size.width > 0 && size.height * size.width <= kMostPixels, "size", "");
  // Exact sizes let the address sanitizer see a byte too far.
  const auto pixels =
      std::make_unique<std::byte[]>(static_cast<std::size_t>(size.height * size.width * channels));
  image->decode(channels, pixels.get());
  const detail::ImageSize to{how / 3 % 9 + 1, how / 27 + 1};
  const auto scaled =
      std::make_unique<std::byte[]>(static_cast<std::size_t>(to.height * to.width * channels));
  detail::ScratchMemory scratch;
  const auto part = how % 2 == 0 ? detail::stretched(to) : detail::cropped(size, to);
  detail::resize_image(pixels.get(), size, channels, part, kMostPixels, scratch, scaled.get());
}

}  // namespace
}  // namespace shardwise

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    shardwise::check(data[0], std::as_bytes(std::span(data + 1, size - 1)));
  } catch (const shardwise::Error& e) {
    const std::string_view message = e.what();
    shardwise::require(
        e.code() == shardwise::ErrorCode::corrupt || e.code() == shardwise::ErrorCode::unsupported,
        "code", message);
    shardwise::require(message.find('\n') == std::string_view::npos, "several lines", message);
  }
  return 0;
}
