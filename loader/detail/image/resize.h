#pragma once

#include <cstddef>
#include <cstdint>

#include "shardwise/loader/detail/image/encoded_image.h"
#include "shardwise/loader/detail/scratch_memory.h"

namespace shardwise::detail {

/// The part of a scaled image that is wanted: `wanted` pixels from (top, left) of an image of
/// `full` pixels.
struct ScaledPart {
  ImageSize full;
  std::int64_t top = 0, left = 0;
  ImageSize wanted;
};

/// All of an image, scaled to `wanted`, whatever its proportions.
ScaledPart stretched(const ImageSize& wanted);

/// The middle of an image that is scaled so that `wanted` is just covered: the short side fits, of
/// the long one both ends are cut off. As torchvision's Resize and CenterCrop.
ScaledPart cropped(const ImageSize& image, const ImageSize& wanted);

/// Scales an image of `channels` bytes per pixel, row-major, and writes the wanted part. A triangle
/// filter as wide as the scale (antialiased), rows first, in Pillow's fixed-point numbers: bit for
/// bit what its Image.resize(BILINEAR) gives up to version 12 (13 takes columns first where that is
/// less work, and differs by 1 there). Each channel by itself: alpha does not weigh. Throws
/// unsupported where it would need more than `max_pixels` pixels in between.
void resize_image(const std::byte* image, const ImageSize& size, int channels,
                  const ScaledPart& part, std::int64_t max_pixels, ScratchMemory& scratch,
                  std::byte* out);

}  // namespace shardwise::detail
