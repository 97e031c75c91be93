#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/loader/detail/files/held_file.h"
#include "shardwise/loader/source.h"

namespace shardwise::detail {

/// Reads one field of records, in whole or in part. Thread-safe.
class RowReader {
 public:
  virtual ~RowReader() = default;

  /// As Source::read, of one box.
  virtual void read(std::int64_t record, const BoxView& to) const = 0;

  /// As Source::will_read.
  virtual void will_read(std::int64_t) const {}
};

/// The place of rows of one size in a file: record i begins at begin_bytes + i * stride_bytes.
struct RowLayout {
  std::size_t begin_bytes, stride_bytes;
  bool swapped = false;  ///< the elements' byte order is not the host's
};

/// Rows of one size in a file. Thread-safe.
class FileRows final : public RowReader {
 public:
  /// Requires that the file holds all rows.
  FileRows(std::shared_ptr<const HeldFile> file, const Field& field, const RowLayout& layout);

  void read(std::int64_t record, const BoxView& to) const override;
  void will_read(std::int64_t record) const override;

 private:
  std::size_t offset_of(std::int64_t record) const {
    return layout_.begin_bytes + static_cast<std::size_t>(record) * layout_.stride_bytes;
  }

  std::shared_ptr<const HeldFile> file_;
  RowLayout layout_;
  DType dtype_;
  Shape shape_;
  Box row_;
  std::size_t element_bytes_, row_bytes_;
};

/// A source of `size` records, with a reader for each field, that describes itself by
/// `description`.
std::shared_ptr<const Source> rows_source(std::int64_t size, std::vector<Field> fields,
                                          std::vector<std::unique_ptr<const RowReader>> readers,
                                          std::string description = "records");

/// A source of one field: rows of one size in a file.
std::shared_ptr<const Source> file_rows_source(std::shared_ptr<const InputFile> file, Field field,
                                               std::int64_t size, const RowLayout& layout,
                                               std::size_t hold_bytes,
                                               std::string description = "records");

}  // namespace shardwise::detail
