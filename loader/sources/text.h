#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/loader/source.h"
#include "shardwise/loader/sources/file_options.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// A field made from one column of a table, or from several side by side.
struct CsvField {
  std::string name;

  /// Type of its numbers. If absent, and not `text`: i64 if all its cells are i64, else f64 if all
  /// are numbers or empty, else it is text.
  std::optional<DType> dtype = {};

  /// Take cells as they are: a ragged field of u8 with the bytes of each cell.
  bool text = false;

  /// Columns of numbers side by side: the field has the shape [columns]. Empty: the one column
  /// called `name`; shape [].
  std::vector<std::string> columns = {};
};

namespace detail {
/// Catches an option under other libraries' name; the compiler's error shows ours.
struct Separator {
  Separator() = default;
  Separator(char) = delete;  // delimiter
};
}  // namespace detail

struct CsvOptions {
  std::vector<CsvField> fields = {};  ///< empty: each column, as a field of its name
  char delimiter = ',';

  /// The first record names the columns; a column without a name is called "Unnamed: I", by its
  /// number, as in pandas. If there is no header, the columns are called "0", "1", ..
  bool header = true;
  std::size_t hold_bytes = kDefaultHoldBytes;
  IndexProgress progress = {};
  [[no_unique_address]] detail::Separator separator = {};
};

/// Opens a table of UTF-8 text, or a gzip file of it, as in RFC 4180: cells that contain
/// delimiters, quotes or line ends are in quotes, and quotes within them are doubled. Lines end
/// with LF or CRLF; empty lines are skipped, and so is a UTF-8 byte order mark. Blanks around a
/// number and a "+" before it are allowed; an empty cell is NaN in a column of floats, and an error
/// in one of integers. A float that is too small becomes 0; one that would become infinite does not
/// belong to that type.
///
/// The file is read once to find its records: 8 bytes are kept per record, and 4 per text. A gzip
/// file is unpacked into memory.
///
/// Throws invalid_argument for impossible options; not_found, also for a column; io; corrupt for
/// broken quotes and text that is not UTF-8, naming the line; unsupported for a column without a
/// given type if no type holds its numbers. A record with too few or too many cells, or with text
/// in a cell that should be a number, is an error when it is read.
///
///   const auto table = open_csv("houses.csv", {.fields = {
///       {.name = "price", .dtype = DType::f32},
///       {.name = "features", .dtype = DType::f32, .columns = {"rooms", "age"}},
///       {.name = "street", .text = true}}});
std::shared_ptr<const Source> open_csv(const std::filesystem::path& path,
                                       const CsvOptions& options = {});

/// A field made from the value of one key in each line's object: a number, true or false, nested
/// lists of these, or a string, which becomes a ragged field of u8 (its UTF-8 bytes).
struct JsonlField {
  std::string name;  ///< of the field and of the key

  /// If absent: boolean, u8 for strings, i64 or u64 for whole numbers, else f64.
  std::optional<DType> dtype = {};

  /// Shape of each record's value. If absent: the shape that all of them have; if they differ in
  /// dim 0, the field is ragged.
  std::optional<Shape> shape = {};

  /// Make the field ragged even if all lengths are equal. A given shape has the largest extent in
  /// dim 0.
  bool ragged = false;
};

struct JsonlOptions {
  std::vector<JsonlField> fields = {};  ///< empty: each key of the first record
  std::size_t hold_bytes = kDefaultHoldBytes;
  IndexProgress progress = {};
};

/// Opens a file with one JSON object (RFC 8259) in each line: a line is a record. Empty lines are
/// skipped, and so is a UTF-8 byte order mark. If a key repeats, its last value counts; keys that
/// are no fields may have any value. No number may be beyond the range of a double; NaN, Infinity
/// and -Infinity are numbers, as Python writes them, and floats are rounded as in open_csv().
///
/// A key that is null or absent is an empty text or list in a ragged field, NaN in each element of
/// a field of floats, and an error in any other; null within a list is NaN. Whole numbers next to
/// them become f64.
///
/// The file is read once to find its records and the sizes of their values: 8 bytes are kept per
/// record, and 4 per ragged field. A gzip file is unpacked into memory.
///
/// Throws invalid_argument for impossible options, and if a field without a given type or shape has
/// values that do not match; not_found; io; corrupt if a field has no value at all or the file is
/// UTF-16; unsupported for a field without a given type if no type holds its numbers. A line that
/// is not JSON or not UTF-8, or has a value that does not fit, is an error when it is read.
///
///   const auto texts = open_jsonl("texts.jsonl", {.fields = {{.name = "tokens",
///                                                             .dtype = DType::i32,
///                                                             .ragged = true}}});
std::shared_ptr<const Source> open_jsonl(const std::filesystem::path& path,
                                         const JsonlOptions& options = {});

}  // namespace shardwise
