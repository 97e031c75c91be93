#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "shardwise/checkpoint/detail/format/json_document.h"
#include "shardwise/shard/dims.h"
#include "shardwise/storage/hash.h"

namespace shardwise::detail {

/// Names an object in messages: "tensor 3", "tensor \"w\" piece 3".
struct JsonWhat {
  const char* what;
  std::string_view name = {};  ///< of the tensor
  const char* part = "";
  std::int64_t number = -1;  ///< < 0: none

  std::string to_string() const;
};

/// A JSON object whose members are read with their types checked. Throws corrupt, beginning with
/// the object's name and the key. Valid as long as the document. Thread-compatible.
class JsonFields {
 public:
  JsonFields(const JsonValue& value, const JsonWhat& what);

  /// An integer of least..2^63-1.
  std::int64_t integer(const char* key, std::int64_t least = 0) const;
  std::int64_t integer_or(const char* key, std::int64_t absent) const;
  std::string_view text(const char* key) const;
  std::string_view text_or(const char* key, std::string_view absent) const;
  JsonValue::ConstArray list(const char* key) const;
  const JsonValue& any(const char* key) const;

  /// Integers of least..2^63-1, at most kMaxRank.
  Dims dims(const char* key, std::int64_t least) const;

  /// Exactly two integers of 0..2^63-1, the first not above the second.
  std::pair<std::int64_t, std::int64_t> range(const char* key) const;
  std::pair<std::int64_t, std::int64_t> range(const char* key, const JsonValue& value) const;

  std::uint64_t hash64(const char* key) const;
  Hash128 hash128(const char* key) const;

  /// Which of the choices the text is.
  std::size_t choice(const char* key, std::initializer_list<std::string_view> choices) const;

  [[noreturn]] void fail(const std::string& message) const;

 private:
  const JsonValue* find(const char* key) const;
  std::int64_t to_integer(const char* key, const JsonValue& value, std::int64_t least) const;

  const JsonValue& value_;
  JsonWhat what_;
};

}  // namespace shardwise::detail
