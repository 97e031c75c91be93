#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"

namespace shardwise::detail {

/// A virtual dataset shows this if a source is missing: NaN, or a number that is hardly ever meant.
/// Only the first bytes count, as many as an element has.
using FillValue = std::array<std::byte, 16>;
FillValue fill_value(DType dtype);

/// The path of each tensor's dataset in index.h5, in the order of the names; all distinct, none
/// both group and dataset. Requires distinct names. (docs/checkpoint_format.md, heading "index.h5")
std::vector<std::string> index_paths(std::span<const std::string> names);

/// The bytes of index.h5 for these tensors, whose pieces are in `files`. Equal arguments give
/// equal bytes. Throws io if HDF5 fails.
std::vector<std::byte> build_index_file(std::span<const TensorEntry> tensors,
                                        std::span<const FileEntry> files);

/// An index helps if it is opened in a moment: a checkpoint of more writers, or of more pieces, has
/// none.
inline constexpr std::int64_t kMostIndexedWriters = 64;
inline constexpr std::size_t kMostMappings = std::size_t{1} << 20;

/// The same of a checkpoint of version 2 with these tensors, whose pieces are not looked at: they
/// follow from the writers. Empty if there are too many for an index to help.
std::vector<std::byte> build_useful_index(const WriterMap& writers,
                                          std::span<const TensorEntry> tensors);

}  // namespace shardwise::detail
