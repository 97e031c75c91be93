#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/loader/sources/detail/json_scanner.h"
#include "shardwise/shard/dims.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// A JSON value that a field can have. Thread-compatible.
struct JsonValue {
  bool is_text = false, has_truth = false, has_integer = false, has_real = false;
  Shape shape;  ///< of lists within one another; of a text its bytes

  /// The elements, row-major, where they were asked for.
  std::vector<std::byte> elements;
};

/// Reads a value. With a dtype, its elements, too: a text only where that is u8. Throws JsonFault
/// for an object, null, lists of unequal lengths, over kMaxRank of them within one another, strings
/// within lists, and numbers that are none of the dtype.
void read_json_value(JsonScanner& scanner, std::optional<DType> dtype, JsonValue& value);

}  // namespace shardwise::detail
