#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// The bytes of a slab in the order of the file, each in a buffer or where its source has it.
///
/// The buffer needs room for the slab, and begins, as the slab does in the file, on a page; so does
/// then whatever is written from its own place, which lets all of it pass the page cache by.
/// Thread-compatible.
class SlabBytes {
 public:
  explicit SlabBytes(std::byte* buffer) : room_(buffer), pending_(buffer) {}

  /// Number of bytes, and so the next one's place in the slab.
  std::size_t size() const { return size_; }

  /// The place of the buffer's next bytes; call add() with the number of bytes put there.
  std::byte* room() { return room_; }
  void add(std::size_t bytes);

  /// True if bytes may stay at `data`: enough of them to be worth it, and on a page both there and
  /// in the slab.
  bool takes(std::span<const std::byte> data) const;

  /// Adds bytes that stay where they are until the slab is written, except the rest after the last
  /// whole page. Requires takes(data).
  void add_in_place(std::span<const std::byte> data);

  /// Zeros up to a multiple.
  void pad_to(std::size_t multiple);

  /// Valid as long as the buffer, and the bytes that were added in place.
  std::span<const WriteRun> runs();

 private:
  /// Makes a run of the bytes that the buffer has got since the last one.
  void end_run();

  std::byte* room_;
  std::byte* pending_;  // the begin of the bytes in no run yet
  std::size_t size_ = 0;
  std::vector<WriteRun> runs_;
};

}  // namespace shardwise::detail
