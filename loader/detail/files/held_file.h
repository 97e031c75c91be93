#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "shardwise/loader/detail/files/held_bytes.h"
#include "shardwise/loader/detail/files/input_file.h"
#include "shardwise/shard/box_copy.h"

namespace shardwise::detail {

/// A file of records whose blocks stay in memory once they are read (HeldBytes). Offsets are those
/// of the file. Bytes that the file lacks, because it was cut after it was opened, are an error
/// that names file, record and offset. Thread-safe.
class HeldFile {
 public:
  /// Records are read from the file's bytes [begin, end). Requires a range within the file.
  HeldFile(std::shared_ptr<const InputFile> file, std::size_t begin, std::size_t end,
           HoldBudget& budget);

  const InputFile& file() const { return *file_; }

  /// As HeldBytes::find.
  const std::byte* find(std::size_t offset, std::size_t size) const {
    return offset < begin_ ? nullptr : bytes_.find(offset - begin_, size);
  }

  /// A hint: fetches the bytes into the processor's cache if they are kept.
  void will_read(std::size_t offset, std::size_t size) const {
    if (offset >= begin_) bytes_.will_read(offset - begin_, size);
  }

  /// Fills all of `out`. Throws io, or corrupt if the file ends before.
  void read(std::int64_t record, std::size_t offset, std::span<std::byte> out) const;

  /// Copies the elements of `wanted` from a row-major array that begins at `offset` and holds the
  /// box `stored`. Makes few system calls: reads only needed bytes, and small gaps. Requires
  /// `wanted` within `stored` and `to.box`. Throws as read() does.
  void read_box(std::int64_t record, std::size_t offset, const Box& stored, const Box& wanted,
                std::size_t element_bytes, const BoxView& to) const;

 private:
  std::shared_ptr<const InputFile> file_;
  std::size_t begin_;
  HeldBytes bytes_;
};

}  // namespace shardwise::detail
