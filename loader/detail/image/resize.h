#pragma once

#include <cstddef>
#include <cstdint>

#include "shardwise/loader/detail/image/encoded_image.h"
#include "shardwise/loader/detail/scratch_memory.h"

namespace shardwise::detail {

/// The wanted part of a scaled image: `wanted` pixels from (top, left) on, if the whole image is
/// scaled to `full` pixels.
struct ScaledPart {
  ImageSize full;
  std::int64_t top = 0, left = 0;
  ImageSize wanted;
};

/// All of an image, scaled to `wanted`, whatever its proportions.
ScaledPart stretched(const ImageSize& wanted);

/// The middle of an image that is scaled to just cover `wanted`: the short side fits, and both ends
/// of the long side are cut off. As torchvision's Resize and CenterCrop.
ScaledPart cropped(const ImageSize& image, const ImageSize& wanted);

/// Scales an image of `channels` bytes per pixel, row-major, and writes the wanted part. It uses a
/// triangle filter as wide as the scale (antialiased), rows first, in Pillow's fixed-point numbers:
/// bit for bit the result of its Image.resize(BILINEAR) up to version 12 (13 takes columns first if
/// that is less work, and then differs by 1). Channels are scaled separately: alpha is no weight.
/// Throws unsupported if the intermediate image would have more than `max_pixels` pixels.
void resize_image(const std::byte* image, const ImageSize& size, int channels,
                  const ScaledPart& part, std::int64_t max_pixels, ScratchMemory& scratch,
                  std::byte* out);

}  // namespace shardwise::detail
