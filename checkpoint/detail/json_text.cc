#include "shardwise/checkpoint/detail/json_text.h"

#include <fmt/format.h>

#include <limits>
#include <vector>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

using nlohmann::json;

[[noreturn]] void corrupt(const std::string& message) { throw Error(ErrorCode::corrupt, message); }

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// The place after the string that begins at text[at].
std::size_t skip_string(std::string_view text, std::size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at + 1;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

json parse_json(std::string_view text, int max_nesting) {
  // nlohmann's parser keeps its stack on the heap, but copying, printing and destroying do not all:
  // the depth is bounded while parsing. A repeated key shows as an object with fewer members than
  // keys were read.
  std::vector<std::size_t> keys;
  const auto watch = [&keys, max_nesting](int depth, json::parse_event_t event, json& parsed) {
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        if (depth >= max_nesting) {
          corrupt(fmt::format("is nested deeper than {} levels", max_nesting));
        }
        if (event == json::parse_event_t::object_start) keys.push_back(0);
        break;
      case json::parse_event_t::key:
        ++keys.back();
        break;
      case json::parse_event_t::object_end:
        if (keys.back() != parsed.size()) corrupt("has an object with the same key twice");
        keys.pop_back();
        break;
      default:
        break;
    }
    return true;
  };
  if (text.substr(0, 3) == "\xef\xbb\xbf") corrupt("begins with a byte order mark");
  try {
    return json::parse(text.begin(), text.end(), watch);
  } catch (const json::parse_error& e) {
    corrupt(fmt::format("is not JSON: syntax error at byte {}", e.byte));
  } catch (const json::out_of_range&) {
    corrupt("is not usable JSON: a number is beyond the range of a double");
  }
}

std::string_view raw_member(std::string_view text, std::string_view key) {
  // At depth 1 a string that a colon follows is a key.
  int depth = 0;
  for (std::size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c != '"') {
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      ++at;
      continue;
    }
    const std::size_t begin = at + 1;
    at = skip_string(text, at);
    if (depth != 1) continue;
    const std::string_view word = text.substr(begin, at - 1 - begin);
    while (at < text.size() && is_blank(text[at])) ++at;
    if (at == text.size() || text[at] != ':' || word != key) continue;

    const std::size_t value = ++at;
    for (int inside = 0; at < text.size(); ++at) {
      const char d = text[at];
      if (d == '"') at = skip_string(text, at) - 1;
      if (inside == 0 && (d == ',' || d == '}')) break;
      if (d == '{' || d == '[') ++inside;
      if (d == '}' || d == ']') --inside;
    }
    return trimmed(text.substr(value, at - value));
  }
  return {};
}

JsonFields::JsonFields(const json& value, std::string what, std::int64_t number)
    : value_(value), what_(std::move(what)), number_(number) {
  if (!value.is_object()) fail(fmt::format("is a JSON {}, must be an object", value.type_name()));
}

void JsonFields::fail(const std::string& message) const {
  corrupt(number_ < 0 ? fmt::format("{}: {}", what_, message)
                      : fmt::format("{} {}: {}", what_, number_, message));
}

std::string JsonFields::shown(std::string_view text) {
  constexpr std::size_t kMost = 100;
  return fmt::format("{:?}{}", text.substr(0, kMost), text.size() > kMost ? ".." : "");
}

const json& JsonFields::any(const char* key) const {
  const auto found = value_.find(key);
  if (found == value_.end()) fail(fmt::format("key \"{}\" is missing", key));
  return *found;
}

std::int64_t JsonFields::to_integer(const char* key, const json& value, std::int64_t least) const {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  if (!value.is_number_integer()) {
    fail(value.is_number_float()
             ? fmt::format("\"{}\" holds {}, must be an integer below 2^63", key, value.dump())
             : fmt::format("\"{}\" holds a JSON {}, must be an integer", key, value.type_name()));
  }
  const bool too_big =
      value.is_number_unsigned() && value.get<std::uint64_t>() > std::uint64_t{kMost};
  if (too_big || value.get<std::int64_t>() < least) {
    fail(fmt::format("\"{}\" is {}, must be {} .. 2^63 - 1", key, value.dump(), least));
  }
  return value.get<std::int64_t>();
}

std::int64_t JsonFields::integer(const char* key, std::int64_t least) const {
  return to_integer(key, any(key), least);
}

const std::string& JsonFields::text(const char* key) const {
  const json& value = any(key);
  if (!value.is_string()) {
    fail(fmt::format("\"{}\" is a JSON {}, must be a string", key, value.type_name()));
  }
  return value.get_ref<const std::string&>();
}

const json& JsonFields::list(const char* key) const {
  const json& value = any(key);
  if (!value.is_array()) {
    fail(fmt::format("\"{}\" is a JSON {}, must be a list", key, value.type_name()));
  }
  return value;
}

Dims JsonFields::dims(const char* key, std::int64_t least) const {
  const json& values = list(key);
  if (values.size() > kMaxRank) {
    fail(fmt::format("\"{}\" has {} entries, at most {} are possible", key, values.size(),
                     kMaxRank));
  }
  Dims dims;
  for (const json& value : values) dims.push_back(to_integer(key, value, least));
  return dims;
}

std::pair<std::int64_t, std::int64_t> JsonFields::range(const char* key) const {
  return range(key, any(key));
}

std::pair<std::int64_t, std::int64_t> JsonFields::range(const char* key, const json& value) const {
  if (!value.is_array() || value.size() != 2) {
    fail(fmt::format("\"{}\" must be made of pairs [begin,end]", key));
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
  const std::string& value = text(key);
  std::size_t i = 0;
  for (const std::string_view option : choices) {
    if (option == value) return i;
    ++i;
  }
  fail(fmt::format("\"{}\" is {}, known are {}", key, shown(value), fmt::join(choices, ", ")));
}

}  // namespace shardwise::detail
