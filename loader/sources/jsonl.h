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
