#include "shardwise/loader/sources/detail/csv_table.h"

#include <fmt/format.h>

#include <string>
#include <unordered_set>
#include <utility>

#include "shardwise/loader/detail/files/file_window.h"
#include "shardwise/loader/detail/files/shown_text.h"
#include "shardwise/loader/sources/detail/progress_steps.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

constexpr std::string_view kWhat = "open csv file";

// pandas' name for a column that the header does not name.
std::string unnamed(std::size_t column, const std::unordered_set<std::string>& names) {
  const std::string name = fmt::format("Unnamed: {}", column);
  std::string free = name;
  for (int i = 1; names.contains(free); ++i) free = fmt::format("{}.{}", name, i);
  return free;
}

}  // namespace

CsvTable::CsvTable(std::shared_ptr<const InputFile> file, const CsvOptions& options)
    : records_(std::move(file), options.hold_bytes),
      delimiter_(options.delimiter),
      header_(options.header) {
  if (delimiter_ == '"' || delimiter_ == '\n' || delimiter_ == '\r') {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("open csv file {}: the delimiter is a quote or a line end, needed is "
                            "another character",
                            records_.file().path()));
  }
}

void CsvTable::scan(const IndexProgress& progress, const std::function<void()>& begin,
                    const See& see) {
  FileWindow window(records_.file());
  ProgressSteps steps(progress, records_.file().size_bytes());
  records_.begin(window, kWhat);
  Record record;
  bool at_end = false, begun = false;
  for (;;) {
    if (window.text().empty() && !at_end) at_end = !window.read_more();
    if (window.text().empty()) break;
    const CsvSplit split = split_csv(window.text(), delimiter_, at_end, record.cells);
    if (split.end == CsvSplit::End::incomplete) {
      at_end = !window.read_more();
      continue;
    }
    if (split.end != CsvSplit::End::record) {
      throw Error(
          ErrorCode::corrupt,
          fmt::format("open csv file {}: line {}: {}", records_.file().path(),
                      records_.line_at(window.offset() + split.bytes), csv_fault(split.end)));
    }
    const std::uint64_t offset = window.offset();
    records_.check_utf8(kWhat, offset, window.text().substr(0, split.bytes));
    window.pass(split.bytes);
    steps.at(offset);
    if (split.is_empty_line) continue;
    if (!begun) {
      set_columns(record.cells, header_);
      begin();
      begun = true;
      if (header_) continue;
    }
    record.number = size();
    records_.add(offset);
    if (record.cells.size() == columns_.size()) see(record);
  }
  if (!begun) {
    throw Error(ErrorCode::corrupt,
                fmt::format("open csv file {}: it has no record, needed is one with the columns",
                            records_.file().path()));
  }
  steps.finish();
}

void CsvTable::set_columns(const std::vector<CsvCell>& cells, bool header) {
  std::string scratch;
  std::unordered_set<std::string> names;
  columns_.reserve(cells.size());
  for (const CsvCell& cell : cells) {
    columns_.push_back(header ? std::string(csv_value(cell, scratch))
                              : std::to_string(columns_.size()));
    if (columns_.back().empty() || names.insert(columns_.back()).second) continue;
    throw Error(ErrorCode::corrupt,
                fmt::format("open csv file {}: the header names column \"{}\" "
                            "twice",
                            records_.file().path(), shown_text(columns_.back())));
  }
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    if (columns_[i].empty()) names.insert(columns_[i] = unnamed(i, names));
  }
}

void CsvTable::read(std::int64_t number, Record& into) const {
  into.number = number;
  const CsvSplit split =
      split_csv(records_.text(number, into.text), delimiter_, /*is_all=*/true, into.cells);
  if (split.end != CsvSplit::End::record) fail(number, csv_fault(split.end));
  if (into.cells.size() != columns_.size()) {
    fail(number, fmt::format("has {} cells, needed is {}", into.cells.size(), columns_.size()));
  }
}

bool CsvTable::try_read(std::int64_t number, Record& into) const {
  into.number = number;
  const CsvSplit split =
      split_csv(records_.text(number, into.text), delimiter_, /*is_all=*/true, into.cells);
  return split.end == CsvSplit::End::record && into.cells.size() == columns_.size();
}

}  // namespace shardwise::detail
