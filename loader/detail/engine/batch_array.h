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

/// Memory that a batch is written to, and its owner; null where it is another process's.
struct Slab {
  std::byte* data = nullptr;
  std::shared_ptr<void> owner = nullptr;
};

/// Memory of one batch: per array, per mesh position.
using BatchBuffers = std::vector<std::vector<Slab>>;

/// Whether a mesh position is this process's.
using IsHere = std::function<bool(std::int64_t position)>;

/// One array of a batch, a field of the source or the mask: where its rows go in memory.
///
/// A box that several devices hold is written once, to the first of them, and copied to the others.
/// Rows are the outermost dim, so some rows of a box are one stretch of memory. With a halo the
/// boxes are those of the array of widened tiles.
///
/// Immutable, thread-safe.
class BatchArray {
 public:
  struct Options {
    DType dtype;
    Shape shape;      ///< of a batch: [batch size, record dims...], without halos
    Shape available;  ///< what a record has of its dims: less, where a bucket is longer
    std::vector<Halo> halo;
  };

  /// Throws invalid_argument where the halo does not fit the record's dims or a tile of a dim with
  /// a halo is not as wide as the others, and as Sharding does.
  BatchArray(const Options& options, const Sharding& sharding, const IsHere& is_here);

  /// Of the array that is delivered, halos included.
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Sharding& sharding() const { return sharding_; }

  /// What the array needs of a record: a box from its start.
  const Box& record() const { return record_; }

  /// Per mesh position; 0 where it is another process's.
  std::span<const std::size_t> bytes_at() const { return bytes_at_; }

  /// Whether a mesh position is this process's, though its box be empty.
  bool is_here(std::size_t position) const { return is_here_[position]; }

  /// Of one batch in this process, replicas counted.
  std::size_t bytes() const;

  /// A distinct box of which this process has a replica.
  struct Piece {
    std::int64_t begin_row, end_row;
    Box block;                 ///< of a record, as one row of memory holds it: may go beyond it
    Box valid;                 ///< what is in the record; the rest are zeros
    std::size_t row_bytes;     ///< of the block
    bool is_direct;            ///< valid is one stretch of the block,
    std::size_t direct_begin;  ///< from this byte on
    std::vector<std::int64_t> positions;
  };
  std::span<const Piece> pieces() const { return pieces_; }

  /// The pieces together have each element of record() once, for each of their rows; as far as the
  /// array goes they need not be read from anywhere else.
  bool covers_records() const { return covers_records_; }

  /// Copies rows [begin, end) of every distinct box to its other holders.
  void copy_to_replicas(std::span<const Slab> slabs, std::int64_t begin, std::int64_t end) const;

  /// What a position's memory holds of the batch, in indices of the batch without halos, and where
  /// in the memory that begins; the whole box and zeros where there is no halo.
  struct Part {
    Box box;    ///< of the delivered array: the memory is exactly this
    Box batch;  ///< [batch, record dims...], clipped to the record
    Index at;   ///< of batch's first element within the memory
  };
  Part part(std::int64_t position) const;

 private:
  void widen(const Options& options);
  Box block_of(const Box& box) const;
  Piece make_piece(const DistinctPiece& distinct) const;

  DType dtype_;
  Shape shape_, tile_;  // tile_: of record dims with a halo, widened; else 0
  std::vector<Halo> halo_;
  Sharding sharding_;
  Box record_;
  std::vector<std::size_t> bytes_at_;
  std::vector<bool> is_here_;
  std::vector<Piece> pieces_;  // of this process
  bool covers_records_ = false;
};

}  // namespace shardwise::detail
