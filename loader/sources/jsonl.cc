#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "shardwise/loader/detail/copy_row.h"
#include "shardwise/loader/detail/files/file_window.h"
#include "shardwise/loader/detail/files/shown_text.h"
#include "shardwise/loader/detail/files/unpacked_file.h"
#include "shardwise/loader/detail/source_tag.h"
#include "shardwise/loader/sources/detail/json_value.h"
#include "shardwise/loader/sources/detail/open_files.h"
#include "shardwise/loader/sources/detail/progress_steps.h"
#include "shardwise/loader/sources/detail/text_records.h"
#include "shardwise/loader/sources/text.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using detail::JsonFault;
using detail::JsonTarget;
using detail::JsonValue;

// The length for a record that does not fit the field.
constexpr std::uint32_t kUnfitLength = std::numeric_limits<std::uint32_t>::max();

/// One field, and the types and shapes of its values so far.
struct KeyField {
  JsonlField wanted;
  bool is_text = false, has_truth = false, has_number = false;
  bool has_value = false, has_missing = false, differs = false;
  detail::NumberTypes numbers = {};
  Shape shape = {};                         // dim 0: the largest extent
  std::vector<std::uint32_t> lengths = {};  // per record, if there is a dim 0
};

std::int64_t rows_of(const Shape& shape) { return shape.empty() ? 1 : shape[0]; }

/// True if two shapes are equal except for dim 0. A list without elements matches any.
bool go_together(const Shape& a, const Shape& b) {
  if (a.size() != b.size()) return a == Shape{0} || b == Shape{0};
  for (std::size_t dim = 1; dim < a.size(); ++dim) {
    if (a[dim] != b[dim]) return a[0] == 0 || b[0] == 0;
  }
  return true;
}

class JsonlSource final : public Source {
 public:
  JsonlSource(std::shared_ptr<const detail::InputFile> file, const JsonlOptions& options);

  std::int64_t size() const override { return records_.size(); }
  std::span<const Field> fields() const override { return fields_; }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override;
  std::int64_t length(const Sample& sample, std::size_t field) const override;

 private:
  [[noreturn]] void refuse(ErrorCode code, const std::string& found) const {
    throw Error(code, fmt::format("open jsonl file {}: {}", records_.file().path(),
                                  detail::one_line(found)));
  }
  void add_key(const JsonlField& wanted);
  void scan(const JsonlOptions& options);
  void see_line(std::string_view line, bool adds_keys);
  void see_missing(KeyField& key, bool is_absent);
  void see_value(KeyField& key, const JsonValue& value);
  void widen(KeyField& key, const JsonValue& value);
  void note_fault(std::string_view found);
  void finish(KeyField& key);
  std::vector<JsonValue> values_of(std::int64_t record, std::span<const FieldBox> boxes) const;
  void fill_missing(std::int64_t record, std::size_t field, bool is_null, JsonValue& value) const;
  void check(std::int64_t record, std::size_t field, const JsonValue& value) const;

  detail::TextRecords records_;
  std::vector<KeyField> keys_;
  std::vector<Field> fields_;
  std::string first_fault_;
};

JsonlSource::JsonlSource(std::shared_ptr<const detail::InputFile> file, const JsonlOptions& options)
    : records_(std::move(file), options.hold_bytes) {
  for (const JsonlField& field : options.fields) add_key(field);
  scan(options);
  if (keys_.empty()) {
    refuse(ErrorCode::corrupt, fmt::format("it has no field{}", first_fault_));
  }
  for (KeyField& key : keys_) finish(key);
}

void JsonlSource::add_key(const JsonlField& wanted) {
  if (wanted.dtype && !is_computed(*wanted.dtype)) {
    refuse(ErrorCode::unsupported, fmt::format("field \"{}\" is {}, needed is a number or bool",
                                               wanted.name, name(*wanted.dtype)));
  }
  if (wanted.ragged && wanted.shape && wanted.shape->empty()) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("field \"{}\" is ragged and a scalar, needed is a dim", wanted.name));
  }
  if (wanted.shape) num_bytes(*wanted.shape, size_bytes(wanted.dtype.value_or(DType::f64)));
  for (const KeyField& other : keys_) {
    if (other.wanted.name != wanted.name) continue;
    refuse(ErrorCode::invalid_argument,
           fmt::format("field \"{}\" is asked for twice", wanted.name));
  }
  keys_.push_back({.wanted = wanted});
}

void JsonlSource::scan(const JsonlOptions& options) {
  const detail::InputFile& file = records_.file();
  detail::FileWindow window(file);
  detail::ProgressSteps steps(options.progress, file.size_bytes());
  records_.begin(window, "open jsonl file");
  std::size_t searched = 0;
  for (bool at_end = false;;) {
    const std::size_t end = window.text().find('\n', searched);
    if (end == std::string_view::npos && !at_end) {
      searched = window.text().size();
      at_end = !window.read_more();
      continue;
    }
    const std::string_view line = window.text().substr(0, end);
    if (line.empty() && end == std::string_view::npos) break;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) {
      records_.add(window.offset());
      see_line(line, options.fields.empty());
    }
    window.pass(std::min(line.size() + 1, window.text().size()));
    steps.at(window.offset());
    searched = 0;
  }
  steps.finish();
}

// Looks at one record. A record that is no JSON, or lacks a field, throws when it is read.
void JsonlSource::see_line(std::string_view line, bool adds_keys) {
  const std::size_t record = as_size(records_.size() - 1);
  adds_keys = adds_keys && keys_.empty();
  std::vector<std::pair<std::string, JsonValue>> found;
  const auto target = [&](std::string_view name) -> JsonTarget {
    const bool is_wanted =
        adds_keys || std::any_of(keys_.begin(), keys_.end(),
                                 [&](const KeyField& key) { return key.wanted.name == name; });
    if (!is_wanted) return {};
    std::erase_if(found, [&](const auto& other) { return other.first == name; });
    return {&found.emplace_back(name, JsonValue{}).second};
  };
  bool is_whole = true;
  try {
    detail::read_json_object(line, target);
    if (adds_keys) {
      for (const auto& [name, value] : found) add_key({.name = name});
    }
  } catch (const JsonFault& fault) {
    note_fault(fault.found);
    is_whole = false;
  }
  for (KeyField& key : keys_) {
    key.lengths.resize(record, kUnfitLength);
    if (is_whole) {
      const auto value = std::find_if(found.begin(), found.end(), [&](const auto& other) {
        return other.first == key.wanted.name;
      });
      if (value == found.end() || value->second.is_null) {
        see_missing(key, value == found.end());
      } else {
        see_value(key, value->second);
      }
    }
    key.lengths.resize(record + 1, kUnfitLength);
  }
}

void JsonlSource::see_missing(KeyField& key, bool is_absent) {
  note_fault(is_absent ? fmt::format("has no key \"{}\"", key.wanted.name)
                       : fmt::format("key \"{}\": null", key.wanted.name));
  key.has_missing = true;
  key.lengths.push_back(0);
}

void JsonlSource::note_fault(std::string_view found) {
  if (first_fault_.empty()) {
    first_fault_ = fmt::format("; its record {}: {}", records_.size() - 1, found);
  }
}

void JsonlSource::see_value(KeyField& key, const JsonValue& value) {
  const JsonlField& wanted = key.wanted;
  // The options for the field decide; a value that differs is an error when it is read.
  if (wanted.dtype && value.is_text && *wanted.dtype != DType::u8) {
    return note_fault("a string where numbers are needed");
  }
  if (wanted.ragged && value.shape.empty()) return note_fault("a scalar where a list is needed");
  if (wanted.shape) {
    const bool fits = wanted.ragged ? go_together(value.shape, *wanted.shape) &&
                                          rows_of(value.shape) <= rows_of(*wanted.shape)
                                    : value.shape == *wanted.shape;
    if (!fits) return note_fault("a value of another shape");
  }
  widen(key, value);
  key.lengths.push_back(static_cast<std::uint32_t>(rows_of(value.shape)));
}

// Types and shapes that are found from the data must agree in all records.
void JsonlSource::widen(KeyField& key, const JsonValue& value) {
  const std::int64_t record = records_.size() - 1;
  const bool was_text = key.is_text, had_value = key.has_value;
  key.has_truth |= value.has_truth;
  key.has_number |= value.has_number;
  key.numbers.add(value.numbers);
  key.is_text |= value.is_text;
  key.has_value = true;
  if (!key.wanted.dtype && ((had_value && was_text != value.is_text) ||
                            (key.has_truth && (key.has_number || key.is_text)))) {
    refuse(
        ErrorCode::invalid_argument,
        fmt::format("field \"{}\" is of another kind in record {} than before, needed is a dtype",
                    key.wanted.name, record));
  }
  if (key.wanted.shape) {
    key.shape = *key.wanted.shape;
    return;
  }
  if (!had_value) {
    key.shape = value.shape;
    return;
  }
  if (!go_together(key.shape, value.shape)) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("field \"{}\" has shape {} in record {} and {} before, needed is a shape",
                       key.wanted.name, to_string(value.shape), record, to_string(key.shape)));
  }
  const std::int64_t most = std::max(rows_of(key.shape), rows_of(value.shape));
  key.differs |= rows_of(key.shape) != rows_of(value.shape);
  if (rows_of(value.shape) == most) key.shape = value.shape;
}

void JsonlSource::finish(KeyField& key) {
  const JsonlField& wanted = key.wanted;
  if (!key.has_value && (!wanted.dtype || !wanted.shape)) {
    refuse(ErrorCode::corrupt,
           fmt::format("no record has a field \"{}\" that fits{}", wanted.name, first_fault_));
  }
  const bool is_ragged = wanted.ragged || key.differs || (key.is_text && !wanted.shape);
  if (key.has_missing && !is_ragged) key.numbers.add_real();
  const std::optional<DType> dtype = wanted.dtype    ? wanted.dtype
                                     : key.is_text   ? DType::u8
                                     : key.has_truth ? DType::boolean
                                                     : key.numbers.type();
  if (!dtype) refuse(ErrorCode::unsupported, detail::no_number_type(wanted.name));
  Field field{wanted.name, *dtype, wanted.shape.value_or(key.shape), is_ragged};
  if (!field.ragged) key.lengths = {};
  fields_.push_back(std::move(field));
}

// The values of the requested fields.
std::vector<JsonValue> JsonlSource::values_of(std::int64_t record,
                                              std::span<const FieldBox> boxes) const {
  std::string text;
  std::vector<JsonValue> values(fields_.size());
  std::vector<bool> found(fields_.size());
  const auto target = [&](std::string_view name) -> JsonTarget {
    const auto asked = std::find_if(boxes.begin(), boxes.end(), [&](const FieldBox& box) {
      return fields_[box.field].name == name;
    });
    if (asked == boxes.end()) return {};
    found[asked->field] = true;
    return {&values[asked->field], fields_[asked->field].dtype};
  };
  try {
    detail::read_json_object(records_.text(record, text), target);
  } catch (const JsonFault& fault) {
    records_.fail(record, fault.found);
  }
  for (const FieldBox& box : boxes) {
    JsonValue& value = values[box.field];
    if (!found[box.field] || value.is_null) {
      fill_missing(record, box.field, found[box.field], value);
    }
    check(record, box.field, value);
  }
  return values;
}

// Fills in for a key that is null or absent.
void JsonlSource::fill_missing(std::int64_t record, std::size_t field, bool is_null,
                               JsonValue& value) const {
  const Field& needed = fields_[field];
  value.shape = needed.shape;
  if (needed.ragged) {
    value.shape[0] = 0;
    return;
  }
  if (!is_floating(needed.dtype)) {
    records_.fail(record, fmt::format("{} \"{}\"{}, needed is {}", is_null ? "key" : "has no key",
                                      needed.name, is_null ? ": null" : "", name(needed.dtype)));
  }
  const std::size_t bytes = size_bytes(needed.dtype);
  value.elements.resize(num_bytes(needed.shape, bytes));
  for (std::size_t at = 0; at < value.elements.size(); at += bytes) {
    detail::read_number("nan", needed.dtype, value.elements.data() + at);
  }
}

void JsonlSource::check(std::int64_t record, std::size_t field, const JsonValue& value) const {
  const Field& needed = fields_[field];
  const bool fits = needed.ragged ? go_together(value.shape, needed.shape) &&
                                        rows_of(value.shape) <= needed.shape[0]
                                  : value.shape == needed.shape;
  if (fits) return;
  records_.fail(record, fmt::format("key \"{}\" has shape {}, needed is {}{}", needed.name,
                                    to_string(value.shape), to_string(needed.shape),
                                    needed.ragged ? " or less in its dim 0" : ""));
}

void JsonlSource::read(const Sample& sample, std::span<const FieldBox> boxes) const {
  const std::vector<JsonValue> values = values_of(sample.record, boxes);
  for (const FieldBox& box : boxes) {
    const Field& field = fields_[box.field];
    const JsonValue& value = values[box.field];
    detail::copy_row(value.elements.data(), field.shape, rows_of(value.shape),
                     size_bytes(field.dtype), box.to);
  }
}

std::int64_t JsonlSource::length(const Sample& sample, std::size_t field) const {
  if (!fields_[field].ragged) return Source::length(sample, field);
  const std::uint32_t length = keys_[field].lengths[as_size(sample.record)];
  if (length != kUnfitLength) return length;
  // Throws the record's error. The box is empty, since only the value's shape is asked for.
  const FieldBox box{field, {nullptr, Box()}};
  return rows_of(values_of(sample.record, {&box, 1})[field].shape);
}

}  // namespace

namespace detail {

std::shared_ptr<const Source> open_jsonl(std::shared_ptr<const InputFile> file,
                                         const JsonlOptions& options) {
  const std::uint64_t tag = file->tag();
  return with_tag(std::make_shared<JsonlSource>(unpacked(std::move(file)), options), tag);
}

}  // namespace detail

std::shared_ptr<const Source> open_jsonl(const std::filesystem::path& path,
                                         const JsonlOptions& options) {
  return detail::open_jsonl(std::make_shared<const detail::InputFile>(path), options);
}

}  // namespace shardwise
