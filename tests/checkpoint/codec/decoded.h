#pragma once

#include <cstddef>
#include <span>

#include "shardwise/checkpoint/detail/codec/codec.h"

namespace shardwise::detail {

/// Fills `out`, exactly one chunk, from one zstd frame of shuffled bytes.
inline void decode(Decoder& decoder, std::span<const std::byte> stored, std::size_t element_bytes,
                   std::span<std::byte> out) {
  unshuffle(decoder.decompress(stored, out.size()), element_bytes, 0, out);
}

}  // namespace shardwise::detail
