#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/loader/source.h"
#include "shardwise/loader/sources/file_options.h"

namespace shardwise {

/// A field made of one column of a table, or of several side by side.
struct CsvField {
  std::string name;

  /// Of its numbers. If absent, and not `text`: i64 if all its cells are such, else f64 if all are
  /// numbers or empty, else it is text.
  std::optional<DType> dtype = {};

  /// Cells as they are: a ragged field of u8, the bytes of each cell.
  bool text = false;

  /// Columns of numbers side by side: the field has the shape [columns]. Empty: the one column
  /// called `name`; shape [].
  std::vector<std::string> columns = {};
};

struct CsvOptions {
  std::vector<CsvField> fields = {};  ///< empty: each column, as a field of its name
  char delimiter = ',';
  bool header = true;  ///< the first record names the columns; else they are called "0", "1", ..
  std::size_t hold_bytes = kDefaultHoldBytes;
  IndexProgress progress = {};
};

/// Opens a table of text as RFC 4180 has it: cells that contain delimiters, quotes or line ends are
/// in quotes, quotes within them are doubled. Lines end with LF or CRLF; empty lines are passed
/// over, as is a UTF-8 byte order mark. Blanks around a number and a "+" before it are allowed; an
/// empty cell is NaN in a column of floats, and an error in one of integers.
///
/// The file is read once to find its records, of which 8 bytes each are kept, and 4 per text.
///
/// Throws invalid_argument for impossible options; not_found, also for a column; io; corrupt for
/// quotes that are broken, naming the line. A record with too few or too many cells and a number
/// that is none are errors of its read().
///
///   const auto table = open_csv("houses.csv", {.fields = {
///       {.name = "price", .dtype = DType::f32},
///       {.name = "features", .dtype = DType::f32, .columns = {"rooms", "age"}},
///       {.name = "street", .text = true}}});
std::shared_ptr<const Source> open_csv(const std::filesystem::path& path,
                                       const CsvOptions& options = {});

/// A field made of what one key of each line's object has: a number, true or false, lists of them
/// within one another, or a string, which is a ragged field of u8 (its UTF-8 bytes).
struct JsonlField {
  std::string name;  ///< of the field and of the key

  /// If absent: boolean, i64, f64 where a number has a fraction or exponent, u8 for strings.
  std::optional<DType> dtype = {};

  /// Of each record's value. If absent: what all of them have; where they differ in dim 0, the
  /// field is ragged.
  std::optional<Shape> shape = {};

  /// Also where all are of equal length. A shape, if given, has the most in its dim 0.
  bool ragged = false;
};

struct JsonlOptions {
  std::vector<JsonlField> fields = {};  ///< empty: each key of the first record
  std::size_t hold_bytes = kDefaultHoldBytes;
  IndexProgress progress = {};
};

/// Opens a file with one JSON object (RFC 8259) in each line: a line is a record. Empty lines are
/// passed over, as is a UTF-8 byte order mark; of a key that comes twice the last one counts; other
/// keys may have any value. No number may be beyond the range of a double.
///
/// The file is read once to find its records and the sizes of their values, of which 8 bytes each
/// are kept, and 4 per ragged field.
///
/// Throws invalid_argument for impossible options, and where a field whose type or shape is not
/// given has values that do not go together; not_found; io; corrupt where a field has not a single
/// value. A line that is no JSON, or lacks a field, or has a value that does not fit, is an error
/// of its read().
///
///   const auto texts = open_jsonl("texts.jsonl", {.fields = {{.name = "tokens",
///                                                             .dtype = DType::i32,
///                                                             .ragged = true}}});
std::shared_ptr<const Source> open_jsonl(const std::filesystem::path& path,
                                         const JsonlOptions& options = {});

}  // namespace shardwise
