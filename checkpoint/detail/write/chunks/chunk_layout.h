#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/shard/box.h"

// How tensors are cut into chunks, and which chunks follow one another in a shard file: arithmetic
// alone, without elements, memory or files.
namespace shardwise::detail {

/// Chunks hold at most this many bytes, and not much less if the piece is larger.
inline constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

/// The chunk extents for a piece: at most kChunkBytes, every dim cut evenly, so that the last chunk
/// is hardly shorter than the others; contiguous runs of 8 KiB or more if the piece has them.
/// The dim with the fewest cuts is cut next, so that rows and columns cost about the same to read.
Shape chunk_shape(const Shape& piece, std::size_t element_bytes);

/// A piece of a shard file.
struct FilePiece {
  PieceId id;
  std::int64_t end_chunk;  ///< after its last one
};

/// A chunk of a shard file: its tensor and box.
struct FileChunk {
  std::size_t tensor;  ///< number in the list of tensors
  PieceEntry piece;    ///< of that tensor
  Box box;             ///< global; without what reaches over the piece's edge
  std::size_t element_bytes;
  std::size_t bytes;  ///< of all elements, also those over the edge

  /// Bytes of the elements inside the piece's edge.
  std::size_t held_bytes() const {
    return static_cast<std::size_t>(box.num_elements()) * element_bytes;
  }
};

/// Whole groups of chunks, and the bytes before them in the file if nothing shrinks.
struct Slab {
  std::int64_t first, end;  ///< chunk numbers
  std::size_t bytes_before;
};

/// The chunks of one shard file in the order of its chunk table. The chunks of a group are packed:
/// each begins at a multiple of kAlignment, and the group begins and ends on a page and holds at
/// most kChunkBytes, or one chunk. Groups follow from the tensors alone, so files do not depend on
/// how many groups a buffer holds. Thread-compatible.
class ChunkLayout {
 public:
  /// For programs that map the file into memory.
  static constexpr std::size_t kAlignment = 64;

  /// The layouts of all files, which need the tensors. Requires pieces whose first_chunk numbers
  /// follow one another in each file, in the order of the tensors.
  static std::vector<ChunkLayout> of_files(std::span<const TensorEntry> tensors,
                                           std::int64_t files);

  std::int64_t num_chunks() const { return pieces_.empty() ? 0 : pieces_.back().end_chunk; }

  /// In the order of their chunks.
  std::span<const FilePiece> pieces() const { return pieces_; }

  /// Requires 0 <= number < num_chunks(). O(log pieces).
  FileChunk chunk(std::int64_t number) const;

  /// True if a group begins with this chunk.
  bool begins_group(std::int64_t number) const;

  /// Bytes of the elements, without padding over the edges of pieces.
  std::size_t logical_bytes() const { return logical_bytes_; }

  /// Bytes in the file from the first chunk on, whole pages: those that are certain to be needed,
  /// as they are not compressed, and those that are needed if nothing shrinks.
  std::size_t least_bytes() const;
  std::size_t most_bytes() const { return groups_.empty() ? 0 : groups_.back().end_bytes; }

  /// All chunks, in slabs of as many groups as a buffer holds. Requires a buffer for one group.
  std::vector<Slab> slabs(std::size_t buffer_bytes) const;

 private:
  struct Group {
    std::int64_t end;       // chunk number
    std::size_t end_bytes;  // in the file, if nothing shrinks
  };

  explicit ChunkLayout(std::span<const TensorEntry> tensors) : tensors_(tensors) {}

  void add(const PieceId& id);
  void close_group();

  std::span<const TensorEntry> tensors_;
  std::vector<FilePiece> pieces_;
  std::vector<Group> groups_;
  std::size_t open_bytes_ = 0;  // of the group that is not closed yet
  std::size_t logical_bytes_ = 0, raw_bytes_ = 0;
};

}  // namespace shardwise::detail
