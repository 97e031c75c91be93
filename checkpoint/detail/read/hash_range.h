#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// Adds bytes [begin, end) of a file to a hash, as many at a time as there is room for.
template <class Hasher>
void hash_range(File& file, std::uint64_t begin, std::uint64_t end, std::span<std::byte> room,
                Hasher& hasher) {
  while (begin < end) {
    const auto bytes = static_cast<std::size_t>(std::min<std::uint64_t>(room.size(), end - begin));
    file.read_at(begin, room.data(), bytes);
    hasher.update(room.data(), bytes);
    begin += bytes;
  }
}

}  // namespace shardwise::detail
