#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/loader/detail/files/file_window.h"
#include "shardwise/loader/detail/files/held_file.h"

namespace shardwise::detail {

/// The offsets of a text file's records; each record ends where the next one begins.
/// Thread-compatible while records are added, thread-safe from then on.
class TextRecords {
 public:
  TextRecords(std::shared_ptr<const InputFile> file, std::size_t hold_bytes);

  const InputFile& file() const { return *file_; }
  std::int64_t size() const { return static_cast<std::int64_t>(offsets_.size()); }
  void add(std::uint64_t offset) { offsets_.push_back(offset); }

  /// A record with its line end and all else before the next record. Valid as long as this object
  /// and `scratch`. Throws io or corrupt.
  std::string_view text(std::int64_t record, std::string& scratch) const;

  /// Throws corrupt, naming the record and `found`.
  [[noreturn]] void fail(std::int64_t record, std::string_view found) const;

  /// Begins to read the file: skips a UTF-8 byte order mark. Throws corrupt, naming `what`, if the
  /// file is UTF-16.
  void begin(FileWindow& window, std::string_view what) const;

  /// Throws corrupt, naming `what`, if a record that begins at `offset` is not UTF-8 or has a zero
  /// byte.
  void check_utf8(std::string_view what, std::uint64_t offset, std::string_view record) const;

  /// The number of the line that the byte is in, counted from 1; reads the file up to there.
  std::int64_t line_at(std::uint64_t offset) const;

 private:
  [[noreturn]] void refuse_encoding(std::string_view what, std::uint64_t offset,
                                    std::string_view found) const;

  std::shared_ptr<const InputFile> file_;
  HoldBudget budget_;
  HeldFile held_;
  std::vector<std::uint64_t> offsets_;  // per record
};

}  // namespace shardwise::detail
