#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

enum class Layout { contiguous, chunked };

/// The codec of a piece's chunks; Codec::automatic is decided before it gets here.
enum class StoredCodec { none, zstd };

/// The dataset of a piece: "/tensors/<tensor>/<piece>" of its shard file.
struct PieceDataset {
  std::uint32_t tensor = 0, piece = 0;

  std::string path() const;
  bool operator==(const PieceDataset&) const = default;
};

/// A box of a tensor that a shard file has: docs/checkpoint_format.md, headings "Manifest" and
/// "Shard files".
struct PieceEntry {
  Box box = {};
  std::int64_t file = 0;
  PieceDataset dataset = {};
  Layout layout = Layout::contiguous;
  Shape chunk = {};
  StoredCodec codec = StoredCodec::none;
  std::int64_t first_chunk = 0;

  bool operator==(const PieceEntry&) const = default;
};

/// How a piece is cut into chunks.
Shape chunk_grid(const PieceEntry& piece);
std::int64_t num_chunks(const PieceEntry& piece);

/// Global box of chunk i (row-major in the grid), cut off at the piece's edge. Requires
/// 0 <= i < num_chunks(piece).
Box chunk_box(const Box& piece, std::span<const std::int64_t> chunk_shape, std::int64_t chunk);
inline Box chunk_box(const PieceEntry& piece, std::int64_t chunk) {
  return chunk_box(piece.box, piece.chunk, chunk);
}

/// Bytes of one decoded chunk, edge padding included.
std::size_t chunk_bytes(const PieceEntry& piece, DType dtype);

/// The pieces of a tensor, held packed: 80 bytes each of a tensor of 2 dims, 24 more for each
/// further dim. (A PieceEntry has room for kMaxRank dims.) Gives them by value. Thread-compatible.
class PieceList {
 public:
  /// Gives one piece after the other.
  class Iterator {
   public:
    Iterator(const PieceList& list, std::size_t at) : list_(&list), at_(at) {}
    PieceEntry operator*() const { return (*list_)[at_]; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    bool operator==(const Iterator&) const = default;

   private:
    const PieceList* list_;
    std::size_t at_;
  };

  PieceList() = default;
  PieceList(std::initializer_list<PieceEntry> pieces);

  bool empty() const { return words_.empty(); }
  std::size_t size() const { return words_.size() / words(rank_); }
  Iterator begin() const { return {*this, 0}; }
  Iterator end() const { return {*this, size()}; }

  /// Requires i < size().
  PieceEntry operator[](std::size_t i) const;
  std::int64_t file(std::size_t i) const { return at(i)[kFile]; }
  std::int64_t first_chunk(std::size_t i) const { return at(i)[kFirstChunk]; }
  StoredCodec codec(std::size_t i) const { return static_cast<StoredCodec>(at(i)[kStored] >> 8); }
  Box box(std::size_t i) const;
  /// PieceEntry::chunk.
  std::span<const std::int64_t> chunk(std::size_t i) const {
    return {at(i) + kDims + 2 * rank_, rank_};
  }

  /// All have the rank of the first one, in box and chunk.
  void push_back(const PieceEntry& piece);
  void set(std::size_t i, const PieceEntry& piece);
  void append(PieceList pieces);

  void reserve(std::size_t pieces, std::size_t rank) { words_.reserve(pieces * words(rank)); }
  void pop_back();

  /// Keeps no memory.
  void clear() { *this = {}; }

  bool operator==(const PieceList&) const = default;

 private:
  // Words of a piece: these, then begin, end and chunk.
  enum Word : std::size_t { kFile, kFirstChunk, kDataset, kStored, kDims };

  static std::size_t words(std::size_t rank) { return kDims + 3 * rank; }
  const std::int64_t* at(std::size_t i) const { return words_.data() + i * words(rank_); }

  std::size_t rank_ = 0;
  std::vector<std::int64_t> words_;
};

}  // namespace shardwise::detail
