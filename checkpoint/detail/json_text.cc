#include "shardwise/checkpoint/detail/json_text.h"

#include <fmt/format.h>

#include <optional>

#include "shardwise/shard/error.h"

namespace shardwise::detail {

std::string JsonWhat::to_string() const {
  std::string text = name.empty() ? what : fmt::format("{} {:?}{}", what, name, part);
  return number < 0 ? text : fmt::format("{} {}", text, number);
}

JsonFields::JsonFields(const JsonValue& value, const JsonWhat& what) : value_(value), what_(what) {
  if (!value.is(JsonValue::Kind::object)) {
    fail(fmt::format("is a JSON {}, must be an object", value.kind_name()));
  }
}

void JsonFields::fail(const std::string& message) const {
  throw Error(ErrorCode::corrupt, fmt::format("{}: {}", what_.to_string(), message));
}

std::string JsonFields::shown(std::string_view text) {
  constexpr std::size_t kMost = 100;
  return fmt::format("{:?}{}", text.substr(0, kMost), text.size() > kMost ? ".." : "");
}

JsonValue JsonFields::any(const char* key) const {
  const std::optional<JsonValue> found = value_.find(key);
  if (!found) fail(fmt::format("key \"{}\" is missing", key));
  return *found;
}

std::int64_t JsonFields::to_integer(const char* key, const JsonValue& value,
                                    std::int64_t least) const {
  const std::optional<std::int64_t> integer = value.to_int64();
  if (integer && *integer >= least) return *integer;
  constexpr std::size_t kMost = 40;  // characters that are shown
  if (!value.is(JsonValue::Kind::number)) {
    fail(fmt::format("\"{}\" holds a JSON {}, must be an integer", key, value.kind_name()));
  }
  if (!value.is_integer()) {
    fail(fmt::format("\"{}\" holds {}, must be an integer below 2^63", key,
                     value.raw().substr(0, kMost)));
  }
  fail(fmt::format("\"{}\" is {}, must be {} .. 2^63 - 1", key, value.raw().substr(0, kMost),
                   least));
}

std::int64_t JsonFields::integer(const char* key, std::int64_t least) const {
  return to_integer(key, any(key), least);
}

std::int64_t JsonFields::integer_or(const char* key, std::int64_t absent) const {
  return value_.find(key) ? integer(key) : absent;
}

std::string_view JsonFields::text(const char* key) const {
  const JsonValue value = any(key);
  if (!value.is(JsonValue::Kind::string)) {
    fail(fmt::format("\"{}\" is a JSON {}, must be a string", key, value.kind_name()));
  }
  return value.text();
}

std::string_view JsonFields::text_or(const char* key, std::string_view absent) const {
  return value_.find(key) ? text(key) : absent;
}

JsonValue JsonFields::list(const char* key) const {
  const JsonValue value = any(key);
  if (!value.is(JsonValue::Kind::array)) {
    fail(fmt::format("\"{}\" is a JSON {}, must be a list", key, value.kind_name()));
  }
  return value;
}

Dims JsonFields::dims(const char* key, std::int64_t least) const {
  const JsonValue values = list(key);
  if (values.size() > kMaxRank) {
    fail(fmt::format("\"{}\" has {} entries, at most {} are possible", key, values.size(),
                     kMaxRank));
  }
  Dims dims;
  for (const JsonValue value : values) dims.push_back(to_integer(key, value, least));
  return dims;
}

std::pair<std::int64_t, std::int64_t> JsonFields::range(const char* key) const {
  return range(key, any(key));
}

std::pair<std::int64_t, std::int64_t> JsonFields::range(const char* key,
                                                        const JsonValue& value) const {
  if (!value.is(JsonValue::Kind::array) || value.size() != 2) {
    fail(fmt::format("\"{}\" must be made of pairs [begin,end]", key));
  }
  JsonValue::Iterator at = value.begin();
  const std::int64_t begin = to_integer(key, *at, 0);
  const std::int64_t end = to_integer(key, *++at, 0);
  if (begin > end) fail(fmt::format("\"{}\" begins at {} and ends at {}", key, begin, end));
  return {begin, end};
}

std::uint64_t JsonFields::hash64(const char* key) const {
  std::uint64_t hash = 0;
  if (!from_hex(text(key), hash)) fail(fmt::format("\"{}\" is not 16 hex digits", key));
  return hash;
}

Hash128 JsonFields::hash128(const char* key) const {
  Hash128 hash;
  if (!from_hex(text(key), hash)) fail(fmt::format("\"{}\" is not 32 hex digits", key));
  return hash;
}

std::size_t JsonFields::choice(const char* key,
                               std::initializer_list<std::string_view> choices) const {
  const std::string_view value = text(key);
  std::size_t i = 0;
  for (const std::string_view option : choices) {
    if (option == value) return i;
    ++i;
  }
  fail(fmt::format("\"{}\" is {}, known are {}", key, shown(value), fmt::join(choices, ", ")));
}

}  // namespace shardwise::detail
