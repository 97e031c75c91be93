#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "shardwise/loader/detail/image/encoded_image.h"

namespace shardwise::detail {

/// The camera's orientation in the image's EXIF data: 1 (upright) to 8; 1 if it is not stated.
int exif_orientation(std::span<const std::byte> encoded);

/// The image turned upright, as by Pillow's ImageOps.exif_transpose. Its decode() needs as much
/// memory again. Requires an orientation of 1 to 8.
std::unique_ptr<EncodedImage> upright(std::unique_ptr<EncodedImage> image, int orientation);

}  // namespace shardwise::detail
