#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/shard/box.h"

namespace shardwise::detail {

/// A distinct piece of a tensor, and who could write it.
struct HeldPiece {
  Box box;
  std::size_t element_bytes = 1;
  std::vector<std::int64_t> writers;  ///< ascending; never empty
};

/// A box that one writer stores.
struct WriterShare {
  std::int64_t writer;
  Box box;

  bool operator==(const WriterShare&) const = default;
};

/// The writers among `writers`, each of which stands for as many mesh positions that follow one
/// another as it can be, that hold something at one of these positions, ascending.
std::vector<std::int64_t> writers_of(std::span<const std::int64_t> positions,
                                     std::int64_t mesh_size, std::int64_t writers);

/// Cuts each piece that several writers hold so that all of them write about the same number of
/// bytes, along its outermost dim that is long enough for that, or else its longest; small pieces
/// go to one of them whole.
/// Gives the shares of each piece: disjoint, not empty, all of it together. Those that only one
/// writer holds are counted first; each other one then fills up who has least.
std::vector<std::vector<WriterShare>> share_out(std::span<const HeldPiece> pieces,
                                                std::int64_t writers);

}  // namespace shardwise::detail
