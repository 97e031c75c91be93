#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "shardwise/loader/detail/copy_row.h"
#include "shardwise/loader/detail/files/shown_text.h"
#include "shardwise/loader/detail/files/unpacked_file.h"
#include "shardwise/loader/detail/source_tag.h"
#include "shardwise/loader/sources/detail/csv_table.h"
#include "shardwise/loader/sources/detail/number_text.h"
#include "shardwise/loader/sources/detail/open_files.h"
#include "shardwise/loader/sources/text.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using detail::CsvCell;
using detail::CsvTable;

/// The length for a record that cannot be read.
constexpr std::uint32_t kNoLength = std::numeric_limits<std::uint32_t>::max();

/// A cell as a number, without the blanks and the "+" that are allowed.
std::string_view number_of(const CsvCell& cell) {
  std::string_view text = cell.text;
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  return text;
}

bool read_cell_number(const CsvCell& cell, DType dtype, std::byte* out) {
  const std::string_view text = number_of(cell);
  return detail::read_number(text.empty() && is_floating(dtype) ? "nan" : text, dtype, out);
}

/// One field and its columns.
struct TableField {
  std::vector<std::size_t> columns;
  std::optional<DType> dtype;  // absent until it is found
  bool text = false;

  // The numbers in the cells so far.
  detail::NumberTypes numbers = {};
  bool has_value = false;
  std::size_t longest = 0;
  std::vector<std::uint32_t> lengths = {};  // per record, of a text
};

class CsvSource final : public Source {
 public:
  CsvSource(std::shared_ptr<const detail::InputFile> file, const CsvOptions& options);

  std::int64_t size() const override { return table_.size(); }
  std::span<const Field> fields() const override { return fields_; }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override;
  std::int64_t length(const Sample& sample, std::size_t field) const override;

 private:
  [[noreturn]] void refuse(ErrorCode code, const std::string& found) const;
  void begin(const CsvOptions& options);
  void add_field(const CsvField& wanted);
  std::size_t column_index(const std::string& name) const;
  void see(const CsvTable::Record& record);
  void see_value(const CsvTable::Record& record, const CsvCell& cell, std::size_t i);
  void become_text(std::int64_t end, TableField& field) const;
  void finish();
  void read_numbers(const CsvTable::Record& record, const TableField& field,
                    const BoxView& to) const;
  void read_text(const CsvTable::Record& record, std::size_t field, const BoxView& to) const;

  std::string path_;
  CsvTable table_;
  std::vector<TableField> parts_;  // per field
  std::vector<Field> fields_;
  std::unordered_set<std::string> field_names_;
  std::unordered_map<std::string, std::size_t> column_numbers_;
  std::int64_t whole_records_ = 0;  // those with as many cells as there are columns
};

CsvSource::CsvSource(std::shared_ptr<const detail::InputFile> file, const CsvOptions& options)
    : path_(file->path()), table_(std::move(file), options) {
  table_.scan(
      options.progress, [&] { begin(options); },
      [this](const CsvTable::Record& record) { see(record); });
  finish();
}

void CsvSource::refuse(ErrorCode code, const std::string& found) const {
  throw Error(code, fmt::format("open csv file {}: {}", path_, detail::one_line(found)));
}

void CsvSource::begin(const CsvOptions& options) {
  const std::vector<std::string>& columns = table_.columns();
  for (std::size_t i = 0; i < columns.size(); ++i) column_numbers_.emplace(columns[i], i);
  for (const CsvField& field : options.fields) add_field(field);
  if (!options.fields.empty()) return;
  for (const std::string& column : table_.columns()) add_field({.name = column});
}

void CsvSource::add_field(const CsvField& wanted) {
  if (wanted.text && (wanted.dtype || !wanted.columns.empty())) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("field \"{}\" is text with a dtype or a list of columns, needed is neither",
                       wanted.name));
  }
  if (wanted.dtype && !is_computed(*wanted.dtype)) {
    refuse(ErrorCode::unsupported, fmt::format("field \"{}\" is {}, needed is a number or bool",
                                               wanted.name, name(*wanted.dtype)));
  }
  TableField field{.columns = {}, .dtype = wanted.dtype, .text = wanted.text};
  Field shown{wanted.name, DType::u8, {}};
  if (wanted.columns.empty()) {
    field.columns.push_back(column_index(wanted.name));
  } else {
    for (const std::string& column : wanted.columns) field.columns.push_back(column_index(column));
    shown.shape.push_back(static_cast<std::int64_t>(field.columns.size()));
  }
  if (!field_names_.insert(shown.name).second) {
    refuse(ErrorCode::invalid_argument, fmt::format("field \"{}\" is asked for twice", shown.name));
  }
  parts_.push_back(std::move(field));
  fields_.push_back(std::move(shown));
}

std::size_t CsvSource::column_index(const std::string& name) const {
  const auto found = column_numbers_.find(name);
  if (found != column_numbers_.end()) return found->second;
  refuse(ErrorCode::not_found, fmt::format("there is no column \"{}\"; it has {}", name,
                                           detail::shown_names(table_.columns())));
}

void CsvSource::see(const CsvTable::Record& record) {
  ++whole_records_;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    TableField& field = parts_[i];
    if (field.text) {
      field.lengths.resize(as_size(record.number), kNoLength);
      const std::size_t size = record.cells[field.columns[0]].size();
      field.longest = std::max(field.longest, size);
      field.lengths.push_back(static_cast<std::uint32_t>(size));
    } else if (!field.dtype) {
      for (const std::size_t column : field.columns) see_value(record, record.cells[column], i);
    }
  }
}

// For a field whose type is found from the data.
void CsvSource::see_value(const CsvTable::Record& record, const CsvCell& cell, std::size_t i) {
  TableField& field = parts_[i];
  field.longest = std::max(field.longest, cell.size());
  const std::string_view number = number_of(cell);
  if (number.empty()) {
    field.numbers.add_real();
    return;
  }
  field.has_value = true;
  if (field.numbers.add(number)) return;
  if (!fields_[i].shape.empty()) {
    refuse(ErrorCode::invalid_argument,
           fmt::format(
               "field \"{}\" is of a list of columns, needed are numbers in all; record {} has "
               "\"{}\"",
               fields_[i].name, record.number, detail::shown_text(cell.text)));
  }
  become_text(record.number, field);
  field.lengths.push_back(static_cast<std::uint32_t>(cell.size()));
}

// Turns a column that is not numeric after all into text: adds the lengths of the cells before.
void CsvSource::become_text(std::int64_t end, TableField& field) const {
  field.text = true;
  CsvTable::Record record;
  for (std::int64_t number = 0; number < end; ++number) {
    const bool is_whole = table_.try_read(number, record);
    field.lengths.push_back(
        is_whole ? static_cast<std::uint32_t>(record.cells[field.columns[0]].size()) : kNoLength);
  }
}

void CsvSource::finish() {
  if (whole_records_ == 0 && table_.size() > 0) {
    refuse(ErrorCode::corrupt,
           fmt::format("found {} records, none with {} cells; needed are as many as there are "
                       "columns",
                       table_.size(), table_.columns().size()));
  }
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    TableField& field = parts_[i];
    if (!field.text && !field.dtype) {
      if (field.has_value) {
        field.dtype = field.numbers.type();
        if (!field.dtype) {
          refuse(ErrorCode::unsupported, detail::no_number_type(fields_[i].name));
        }
      } else if (fields_[i].shape.empty()) {
        become_text(table_.size(), field);
      } else {
        field.dtype = DType::f64;
      }
    }
    if (field.text) {
      field.lengths.resize(as_size(table_.size()), kNoLength);
      fields_[i].shape = {static_cast<std::int64_t>(field.longest)};
      fields_[i].ragged = true;
    } else {
      fields_[i].dtype = *field.dtype;
    }
  }
}

void CsvSource::read(const Sample& sample, std::span<const FieldBox> boxes) const {
  CsvTable::Record record;
  table_.read(sample.record, record);
  for (const FieldBox& box : boxes) {
    if (parts_[box.field].text) {
      read_text(record, box.field, box.to);
    } else {
      read_numbers(record, parts_[box.field], box.to);
    }
  }
}

void CsvSource::read_numbers(const CsvTable::Record& record, const TableField& field,
                             const BoxView& to) const {
  const bool is_scalar = to.box.rank() == 0;
  const auto begin = is_scalar ? 0 : as_size(to.box.begin(0));
  const auto end = is_scalar ? 1 : as_size(to.box.end(0));
  std::byte* out = to.data;
  for (std::size_t i = begin; i < end; ++i, out += size_bytes(*field.dtype)) {
    const CsvCell& cell = record.cells[field.columns[i]];
    if (read_cell_number(cell, *field.dtype, out)) continue;
    table_.fail(record.number,
                fmt::format("column \"{}\" has \"{}\", needed is a number of type {}",
                            table_.columns()[field.columns[i]], detail::shown_text(cell.text),
                            name(*field.dtype)));
  }
}

void CsvSource::read_text(const CsvTable::Record& record, std::size_t field,
                          const BoxView& to) const {
  std::string scratch;
  const std::string_view value = detail::csv_value(record.cells[parts_[field].columns[0]], scratch);
  if (value.size() != parts_[field].lengths[as_size(record.number)]) {
    table_.fail(record.number, fmt::format("column \"{}\" has {} bytes, had another length when "
                                           "the file was opened",
                                           fields_[field].name, value.size()));
  }
  detail::copy_row(reinterpret_cast<const std::byte*>(value.data()), fields_[field].shape,
                   static_cast<std::int64_t>(value.size()), 1, to);
}

std::int64_t CsvSource::length(const Sample& sample, std::size_t field) const {
  if (!parts_[field].text) return Source::length(sample, field);
  const std::uint32_t length = parts_[field].lengths[as_size(sample.record)];
  if (length != kNoLength) return length;
  CsvTable::Record record;
  table_.read(sample.record, record);  // throws the record's error
  table_.fail(sample.record, "has as many cells as it needs, had not when the file was opened");
}

}  // namespace

namespace detail {

std::shared_ptr<const Source> open_csv(std::shared_ptr<const InputFile> file,
                                       const CsvOptions& options) {
  const std::uint64_t tag = file->tag();
  return with_tag(std::make_shared<CsvSource>(unpacked(std::move(file)), options), tag);
}

}  // namespace detail

std::shared_ptr<const Source> open_csv(const std::filesystem::path& path,
                                       const CsvOptions& options) {
  return detail::open_csv(std::make_shared<const detail::InputFile>(path), options);
}

}  // namespace shardwise
