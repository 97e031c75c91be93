#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/loader/sources/detail/number_text.h"
#include "shardwise/shard/dims.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// An error in a JSON text. Caught by callers that know its file and line.
struct JsonFault {
  std::string found;
};

/// A JSON value that a field can have. Thread-compatible.
struct JsonValue {
  bool is_null = false, is_text = false, has_truth = false, has_number = false;
  NumberTypes numbers = {};
  Shape shape = {};  ///< of nested lists; for a text, its number of bytes

  /// The elements, row-major, if requested.
  std::vector<std::byte> elements = {};
};

/// The place for a key's value. Elements are kept only if there is a dtype; for a text, only if it
/// is u8.
struct JsonTarget {
  JsonValue* value = nullptr;  ///< null: any value is skipped
  std::optional<DType> dtype = {};
  std::string* text = nullptr;  ///< if given: a string's characters, or a number as it is written
};

/// Reads a text that is one JSON object (RFC 8259; no number may be beyond the range of a double;
/// NaN, Infinity and -Infinity are numbers, as Python writes them; null within a list is NaN).
/// `target` is called with each key, in order; if a key repeats, its last value counts. The target
/// that it returns must be valid until the next call.
///
/// Throws JsonFault for anything else. Also throws it, naming the key, if a value with a target is
/// an object, lists of unequal lengths, lists nested deeper than kMaxRank, strings within lists, or
/// numbers that the dtype does not hold.
void read_json_object(std::string_view text,
                      const std::function<JsonTarget(std::string_view key)>& target);

}  // namespace shardwise::detail
