#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "shardwise/shard/box.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// Fills `out` with a box of the row-major tensor that begins at `offset` of the file. Runs near
/// each other are read together with the bytes between them, which takes up to 512 KiB.
void read_box(File& file, std::uint64_t offset, const Shape& shape, std::size_t element_bytes,
              const Box& box, std::span<std::byte> out);

}  // namespace shardwise::detail
