#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "shardwise/checkpoint/detail/hash.h"
#include "shardwise/shard/dims.h"

namespace shardwise::detail {

/// Parses text from outside: no object may have a key twice, nothing may be nested deeper than
/// `max_nesting` levels, and nothing may follow the value. Throws corrupt with one clause ("is not
/// JSON: ..").
nlohmann::json parse_json(std::string_view text, int max_nesting);

/// The text of the value that `key` has in the outermost object, without blanks around it; empty
/// where the key is not there or is spelt with escapes. Requires text that parse_json accepts.
std::string_view raw_member(std::string_view text, std::string_view key);

/// A JSON object whose members are read with their types checked. Throws corrupt, beginning with
/// what the object is ("tensor \"w\" piece 3") and the key. Valid as long as the object.
/// Thread-compatible.
class JsonFields {
 public:
  /// `number` < 0: the object has none.
  JsonFields(const nlohmann::json& value, std::string what, std::int64_t number = -1);

  /// An integer of least..2^63-1.
  std::int64_t integer(const char* key, std::int64_t least = 0) const;
  const std::string& text(const char* key) const;
  const nlohmann::json& list(const char* key) const;
  const nlohmann::json& any(const char* key) const;

  /// Integers of least..2^63-1, at most kMaxRank.
  Dims dims(const char* key, std::int64_t least) const;

  /// Exactly two integers of 0..2^63-1, the first not above the second.
  std::pair<std::int64_t, std::int64_t> range(const char* key) const;
  std::pair<std::int64_t, std::int64_t> range(const char* key, const nlohmann::json& value) const;

  std::uint64_t hash64(const char* key) const;
  Hash128 hash128(const char* key) const;

  /// Which of the choices the text is.
  std::size_t choice(const char* key, std::initializer_list<std::string_view> choices) const;

  [[noreturn]] void fail(const std::string& message) const;

  /// In quotes, with escapes, cut off after 100 bytes: for messages.
  static std::string shown(std::string_view text);

 private:
  std::int64_t to_integer(const char* key, const nlohmann::json& value, std::int64_t least) const;

  const nlohmann::json& value_;
  std::string what_;
  std::int64_t number_;
};

}  // namespace shardwise::detail
