#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardwise/loader/source.h"
#include "shardwise/runtime/device.h"
#include "shardwise/runtime/sharded_array.h"

namespace shardwise::detail {

/// Device memory of one batch: per array, per mesh position; null where the device is another
/// process's.
using BatchBuffers = std::vector<std::vector<std::shared_ptr<Buffer>>>;

/// One array of every batch, a field of the source or the mask: where its rows go on the devices.
///
/// A box that several devices hold is written once, to the first of them, and copied to the others.
/// Rows are the outermost dim, so some rows of a box are one stretch of memory.
///
/// Immutable, thread-safe.
class BatchArray {
 public:
  /// `array` is a batch: [batch size, record dims...]. Throws not_found where a device of its mesh
  /// is not among `devices`; `devices` must outlive it.
  BatchArray(Devices& devices, ArraySpec array, std::string label);

  const ArraySpec& array() const { return array_; }
  /// Of one batch on all devices of this process, replicas counted.
  std::size_t bytes() const;

  /// One buffer per mesh position of this process, null for others. Throws resource_exhausted.
  std::vector<std::shared_ptr<Buffer>> allocate() const;

  /// Rows of a distinct box that are to be written, one after the other.
  struct Target {
    std::int64_t next_row, end_row;  ///< within the batch
    BoxView record;                  ///< where the next row goes, and which part of a record
    std::size_t row_bytes;

    /// For this many rows more that are written.
    void advance(std::int64_t rows);

    /// Of the rows not yet written.
    std::size_t rest_bytes() const;
  };

  /// The targets of rows [begin_row, end_row) of the batch; none where no box has any of them.
  std::vector<Target> targets(std::span<const std::shared_ptr<Buffer>> buffers,
                              std::int64_t begin_row, std::int64_t end_row) const;

  /// Copies rows of every distinct box to the other devices that hold it.
  void copy_to_replicas(std::span<const std::shared_ptr<Buffer>> buffers, std::int64_t begin_row,
                        std::int64_t end_row) const;

 private:
  struct Piece {
    std::int64_t begin_row, end_row;
    Box record;
    std::size_t row_bytes;
    std::vector<std::int64_t> positions;
  };

  struct Home {
    Device* device;  // null: another process's
    std::size_t size_bytes;
  };

  ArraySpec array_;
  std::string label_;
  std::vector<Home> homes_;    // per mesh position
  std::vector<Piece> pieces_;  // of this process
};

}  // namespace shardwise::detail
