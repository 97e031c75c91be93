#pragma once

#include <rapidjson/document.h>

#include <cstddef>
#include <string_view>
#include <vector>

namespace shardwise::detail {

/// A value in a JsonDocument; valid as long as that.
using JsonValue = rapidjson::Value;

/// JSON text, read by RapidJSON into a tree. Immutable.
class JsonDocument {
 public:
  /// Reads text from outside: UTF-8 without byte order mark, at most 1 GiB of it; no object may
  /// have a key twice, no number may be beyond the range of a double, nothing may be nested deeper
  /// than `max_nesting` levels, and nothing may follow the value. Throws corrupt with one clause
  /// ("is not JSON: .."). The text must outlive the document.
  JsonDocument(std::string_view text, int max_nesting);

  /// An integer without point and exponent is exact if it is in -2^63 .. 2^64 - 1; any other
  /// number is a double.
  const JsonValue& root() const { return root_; }

  /// The value of the root's member `key` as it is written, without blanks around it. Requires an
  /// object that has the member.
  std::string_view raw_member(const char* key) const;

 private:
  std::string_view text_;
  rapidjson::Document root_;
  std::vector<std::size_t> key_ends_;  ///< in the text, of the root's members
};

/// A string's characters. Requires that the value is one.
inline std::string_view text_of(const JsonValue& value) {
  return {value.GetString(), value.GetStringLength()};
}

/// "null", "boolean", "number", "string", "array" or "object".
const char* kind_name(const JsonValue& value);

}  // namespace shardwise::detail
