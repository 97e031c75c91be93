#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// A dataset of a file that holds its elements as they are. Its path begins with "/".
struct PlainDataset {
  std::string path;
  DType dtype;
  Shape shape;
};

/// An HDF5 file but for the elements: HDF5's own bytes before and after them, and where the
/// elements of each dataset begin, 64-byte aligned, in the order of the datasets.
struct PlainFile {
  std::vector<std::byte> front, tail;  ///< the tail ends the file
  std::vector<std::uint64_t> begins;
  std::uint64_t data_end = 0;  ///< where the tail begins
};

/// Requires distinct paths, and that no path is a group of another.
PlainFile plain_file(std::span<const PlainDataset> datasets);

}  // namespace shardwise::detail
