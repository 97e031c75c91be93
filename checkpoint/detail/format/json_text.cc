#include "shardwise/checkpoint/detail/format/json_text.h"

#include <fmt/format.h>

#include "shardwise/shard/error.h"
#include "shardwise/storage/utf8.h"

namespace shardwise::detail {

std::string JsonWhat::to_string() const {
  std::string text = name.empty() ? what : fmt::format("{} {:?}{}", what, name, part);
  return number < 0 ? text : fmt::format("{} {}", text, number);
}

JsonFields::JsonFields(const JsonValue& value, const JsonWhat& what) : value_(value), what_(what) {
  if (!value.IsObject()) {
    fail(fmt::format("is a JSON {}, needed is an object", kind_name(value)));
  }
}

void JsonFields::fail(const std::string& message) const {
  throw Error(ErrorCode::corrupt, fmt::format("{}: {}", what_.to_string(), message));
}

const JsonValue* JsonFields::find(const char* key) const {
  const auto found = value_.FindMember(key);
  return found == value_.MemberEnd() ? nullptr : &found->value;
}

const JsonValue& JsonFields::any(const char* key) const {
  const JsonValue* const found = find(key);
  if (found == nullptr) fail(fmt::format("key \"{}\" is missing", key));
  return *found;
}

std::int64_t JsonFields::to_integer(const char* key, const JsonValue& value,
                                    std::int64_t least) const {
  if (!value.IsNumber()) {
    fail(fmt::format("\"{}\" holds a JSON {}, needed is an integer", key, kind_name(value)));
  }
  if (value.IsDouble()) {
    fail(fmt::format("\"{}\" holds {:#}, needed is an integer below 2^63", key, value.GetDouble()));
  }
  if (value.IsInt64() && value.GetInt64() >= least) return value.GetInt64();
  const std::string found =
      value.IsInt64() ? fmt::to_string(value.GetInt64()) : fmt::to_string(value.GetUint64());
  fail(fmt::format("\"{}\" is {}, needed is {} .. 2^63 - 1", key, found, least));
}

std::int64_t JsonFields::integer(const char* key, std::int64_t least) const {
  return to_integer(key, any(key), least);
}

std::int64_t JsonFields::integer_or(const char* key, std::int64_t absent) const {
  return find(key) == nullptr ? absent : integer(key);
}

std::string_view JsonFields::text(const char* key) const {
  const JsonValue& value = any(key);
  if (!value.IsString()) {
    fail(fmt::format("\"{}\" is a JSON {}, needed is a string", key, kind_name(value)));
  }
  return text_of(value);
}

std::string_view JsonFields::text_or(const char* key, std::string_view absent) const {
  return find(key) == nullptr ? absent : text(key);
}

JsonValue::ConstArray JsonFields::list(const char* key) const {
  const JsonValue& value = any(key);
  if (!value.IsArray()) {
    fail(fmt::format("\"{}\" is a JSON {}, needed is a list", key, kind_name(value)));
  }
  return value.GetArray();
}

Dims JsonFields::dims(const char* key, std::int64_t least) const {
  const auto values = list(key);
  if (values.Size() > kMaxRank) {
    fail(fmt::format("\"{}\" has {} entries, needed is at most {}", key, values.Size(), kMaxRank));
  }
  Dims dims;
  for (const JsonValue& value : values) dims.push_back(to_integer(key, value, least));
  return dims;
}

std::pair<std::int64_t, std::int64_t> JsonFields::range(const char* key) const {
  return range(key, any(key));
}

std::pair<std::int64_t, std::int64_t> JsonFields::range(const char* key,
                                                        const JsonValue& value) const {
  if (!value.IsArray() || value.Size() != 2) {
    fail(fmt::format("\"{}\" has something else, needed are pairs [begin,end]", key));
  }
  const std::int64_t begin = to_integer(key, value[0], 0);
  const std::int64_t end = to_integer(key, value[1], 0);
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
