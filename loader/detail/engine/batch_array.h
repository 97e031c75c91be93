#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardwise/loader/placement.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// Memory that a batch is written to, and its owner; null if it belongs to another process.
struct OwnedBytes {
  std::byte* data = nullptr;
  std::shared_ptr<void> owner = nullptr;
};

/// The memory of one batch, per array and mesh position.
using BatchBuffers = std::vector<std::vector<OwnedBytes>>;

/// True if a mesh position belongs to this process.
using IsHere = std::function<bool(std::int64_t position)>;

/// One array of a batch (a field of the source, or the mask), and the places of its rows in memory.
///
/// A box that several devices hold is written once, to the first device, and copied to the others.
/// Rows are the outermost dim, so consecutive rows of a box are one stretch of memory.
///
/// Immutable, thread-safe.
class BatchArray {
 public:
  struct Options {
    DType dtype;
    Shape shape;      ///< of a batch: [batch size, record dims...]
    Shape available;  ///< extents that a record has: less than shape if a bucket is longer
  };

  /// Throws as Sharding does.
  BatchArray(const Options& options, const Sharding& sharding, const IsHere& is_here);

  /// Dtype of the delivered array.
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Sharding& sharding() const { return sharding_; }

  /// The part of a record that the array needs: a box that begins at the record's start.
  const Box& record() const { return record_; }

  /// Bytes per mesh position; 0 if the position belongs to another process.
  std::span<const std::size_t> bytes_at() const { return bytes_at_; }

  /// True if a mesh position belongs to this process, even if its box is empty.
  bool is_here(std::size_t position) const { return is_here_[position]; }

  /// Bytes of one batch in this process, replicas counted.
  std::size_t bytes() const;

  /// A distinct box that this process holds at least once.
  struct Piece {
    std::int64_t begin_row, end_row;
    Box block;              ///< a record's part in one row of memory; may exceed the record
    Box valid;              ///< the part inside the record; the rest are zeros
    std::size_t row_bytes;  ///< bytes of the block
    bool is_direct;         ///< `valid` is one stretch, at the start of the block
    std::vector<std::int64_t> positions;
  };
  std::span<const Piece> pieces() const { return pieces_; }

  /// True if the pieces together have each element of record() once, for each of their rows. Then
  /// this array needs no other read of the record.
  bool covers_records() const { return covers_records_; }

  /// Copies rows [begin, end) of every distinct box to its other holders.
  void copy_to_replicas(std::span<const OwnedBytes> slabs, std::int64_t begin,
                        std::int64_t end) const;

 private:
  Piece make_piece(const DistinctPiece& distinct) const;

  DType dtype_;
  Shape shape_;
  Sharding sharding_;
  Box record_;
  std::vector<std::size_t> bytes_at_;
  std::vector<bool> is_here_;
  std::vector<Piece> pieces_;  // of this process
  bool covers_records_ = false;
};

}  // namespace shardwise::detail
