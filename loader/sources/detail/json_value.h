#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/dims.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// What is wrong with a JSON text. Caught by those who know its file and line.
struct JsonFault {
  std::string found;
};

/// A JSON value that a field can have. Thread-compatible.
struct JsonValue {
  bool is_text = false, has_truth = false, has_integer = false, has_real = false;
  Shape shape = {};  ///< of lists within one another; of a text its bytes

  /// The elements, row-major, where they were asked for.
  std::vector<std::byte> elements = {};
};

/// Where a key's value goes. Without a dtype its elements are not kept; a text has them only where
/// that is u8.
struct JsonTarget {
  JsonValue* value = nullptr;  ///< null: passed over, whatever it is
  std::optional<DType> dtype = {};
};

/// Reads a text that is one JSON object (RFC 8259; nothing in it may be beyond the range of a
/// double). `target` is called with each of its keys, in order; of a key that comes twice the last
/// value counts. What it returns must be valid until the next call.
///
/// Throws JsonFault for anything else, and, naming the key, for a value with a target that is an
/// object, null, lists of unequal lengths, over kMaxRank of them within one another, strings within
/// lists, or numbers that are none of the dtype.
void read_json_object(std::string_view text,
                      const std::function<JsonTarget(std::string_view key)>& target);

}  // namespace shardwise::detail
