#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/loader/sources/detail/csv_record.h"
#include "shardwise/loader/sources/detail/text_records.h"
#include "shardwise/loader/sources/text.h"

namespace shardwise::detail {

/// The records of a csv file: their offsets and cells. Thread-compatible until it is scanned,
/// thread-safe from then on.
class CsvTable {
 public:
  CsvTable(std::shared_ptr<const InputFile> file, const CsvOptions& options);

  /// The content of one record. Valid as long as the table.
  struct Record {
    std::int64_t number = 0;
    std::vector<CsvCell> cells = {};
    std::string text = {};  ///< the record's text, if the table's memory does not hold it
  };
  using See = std::function<void(const Record&)>;

  /// Finds the header and the records. Calls begin() once the columns are known, and see() for each
  /// record with one cell per column. Throws io, or corrupt if quotes are broken.
  void scan(const IndexProgress& progress, const std::function<void()>& begin, const See& see);

  const std::vector<std::string>& columns() const { return columns_; }

  std::int64_t size() const { return records_.size(); }

  /// Cuts a record into one cell per column. Throws io or corrupt.
  void read(std::int64_t number, Record& into) const;

  /// As read(), but returns false instead of throwing corrupt.
  bool try_read(std::int64_t number, Record& into) const;

  /// Throws corrupt, naming the record and `found`.
  [[noreturn]] void fail(std::int64_t number, std::string_view found) const {
    records_.fail(number, found);
  }

 private:
  void set_columns(const std::vector<CsvCell>& cells, bool header);

  TextRecords records_;
  char delimiter_;
  bool header_;
  std::vector<std::string> columns_;
};

}  // namespace shardwise::detail
