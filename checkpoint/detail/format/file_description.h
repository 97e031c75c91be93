#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"

// What a shard file of version 2 says about itself: docs/checkpoint_format.md, headings
// "Description" and "Piece table".
namespace shardwise::detail {

inline constexpr std::size_t kDescriptionWords = 16;
inline constexpr std::size_t kDescriptionBytes = kDescriptionWords * sizeof(std::uint64_t);

/// The description's bytes: all that the manifest does not say of the file.
std::array<std::uint64_t, kDescriptionWords> describe_file(const FileEntry& file);

/// Reads a description into the entry, which has what the manifest says. Throws corrupt if it is
/// not that of the writer's file, or of places that cannot be; `path` is for messages.
void read_description(std::span<const std::uint64_t> words, FileEntry& file,
                      const std::string& path);

/// The piece table of a file with these pieces, in their order.
std::vector<std::uint64_t> describe_pieces(std::span<const TensorEntry> tensors,
                                           std::span<const PieceId> pieces);

/// Adds a file's pieces, as its table lists them, to the manifest's tensors, each at the end of its
/// tensor's; gives them in the order of the table. Throws corrupt, and adds none, if they are
/// not those that the sharding of each tensor gives its writer, or cannot be.
std::vector<PieceId> add_file_pieces(std::span<const std::uint64_t> table, Manifest& manifest,
                                     std::size_t file, const std::string& path);

}  // namespace shardwise::detail
