#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/shard/dtype.h"

// The tables of a shard file of version 2 about itself: docs/checkpoint_format.md, headings
// "Description" and "Piece table".
namespace shardwise::detail {

inline constexpr std::size_t kDescriptionWords = 16;
inline constexpr std::size_t kDescriptionBytes = kDescriptionWords * sizeof(std::uint64_t);

/// The description's bytes: all that the manifest does not say of the file.
std::array<std::uint64_t, kDescriptionWords> describe_file(const FileEntry& file);

/// Reads a description into the entry, which has the manifest's values. Throws corrupt if it is not
/// that of the writer's file, or names impossible places; `path` is for messages.
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

/// The table that a later save reads: docs/checkpoint_format.md, heading "Content table".
struct ContentTable {
  std::vector<LinkedFile> linked;
  std::vector<std::uint64_t> dtypes;  ///< of each piece: dtype_hash()
  std::vector<std::uint64_t> hashes;  ///< of each chunk: the high half of its XXH3-128
};

std::uint64_t dtype_hash(DType dtype);

/// The content table of a file with these pieces, in their order.
std::vector<std::uint64_t> describe_content(std::span<const LinkedFile> linked,
                                            std::span<const TensorEntry> tensors,
                                            std::span<const PieceId> pieces,
                                            std::span<const std::uint64_t> content_hashes);

/// The number of words of this file's content table, which begins with these two. Throws
/// corrupt if there is no such table.
std::size_t content_words(std::span<const std::uint64_t, 2> begin, const FileEntry& file,
                          const std::string& path);

/// Requires as many words as content_words() says. Throws corrupt if they are no content table.
ContentTable read_content(std::span<const std::uint64_t> words, const FileEntry& file,
                          const std::string& path);

/// A piece as the piece table of a file describes it, to whatever checkpoint the file belongs.
struct DescribedPiece {
  std::uint64_t name_hash = 0;          ///< of the tensor's name
  std::span<const std::uint64_t> dims;  ///< begin, end and chunk, in the table
  StoredCodec codec = StoredCodec::none;
  Layout layout = Layout::contiguous;
  std::int64_t first_chunk = 0, end_chunk = 0;
  PieceDataset dataset = {};

  /// True if it has the box, layout and chunks of `piece`, in a tensor with this name_hash().
  bool is_like(const PieceEntry& piece, std::uint64_t name) const;
};

/// XXH3-64, as piece tables have it.
std::uint64_t name_hash(const TensorEntry& tensor);

/// All pieces of a file's piece table, which must outlive them. Throws corrupt if they cannot be
/// those of the file.
std::vector<DescribedPiece> read_pieces(std::span<const std::uint64_t> table, const FileEntry& file,
                                        const std::string& path);

}  // namespace shardwise::detail
