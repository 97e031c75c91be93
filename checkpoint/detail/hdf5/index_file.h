#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"

namespace shardwise::detail {

/// The path of each tensor's dataset in index.h5, in the order of the names; all distinct, none
/// both group and dataset. Requires distinct names. (docs/checkpoint_format.md, heading "index.h5")
std::vector<std::string> index_paths(std::span<const std::string> names);

/// An index helps where it is opened in a moment: a checkpoint of more shard files, or of more
/// pieces, has none.
inline constexpr std::int64_t kMostIndexedWriters = 64;
inline constexpr std::size_t kMostMappings = std::size_t{1} << 20;

/// The bytes of index.h5 for these tensors, whose pieces are in `files`. Equal arguments give
/// equal bytes. Throws io where HDF5 fails.
std::vector<std::byte> build_index_file(std::span<const TensorEntry> tensors,
                                        std::span<const FileEntry> files);

/// The same of a checkpoint of version 2 with these tensors, all of whose writers have files; empty
/// where it has too many files or pieces for an index to help. Pieces are not looked at.
std::vector<std::byte> build_index_file(const WriterMap& writers, std::vector<TensorEntry> tensors);

/// Empty where there are too many files or pieces.
std::vector<std::byte> build_useful_index(std::span<const TensorEntry> tensors,
                                          std::span<const FileEntry> files);

}  // namespace shardwise::detail
