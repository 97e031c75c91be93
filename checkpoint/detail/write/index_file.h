#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/manifest.h"

namespace shardwise::detail {

/// The path of each tensor's dataset in index.h5, in the order of the names; all distinct, none
/// both group and dataset. Requires distinct names. (docs/checkpoint_format.md, heading "index.h5")
std::vector<std::string> index_paths(std::span<const std::string> names);

/// The bytes of index.h5 for these tensors, whose pieces are in `files`. Equal arguments give
/// equal bytes. Throws io where HDF5 fails.
std::vector<std::byte> build_index_file(std::span<const TensorEntry> tensors,
                                        std::span<const FileEntry> files);

}  // namespace shardwise::detail
