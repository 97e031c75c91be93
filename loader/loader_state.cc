#include "shardwise/loader/loader_state.h"

#include <fmt/format.h>

#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using nlohmann::json;

constexpr std::size_t kFingerprintDigits = 16;

[[noreturn]] void fail(const std::string& found) {
  throw Error(ErrorCode::invalid_argument, "read loader state: " + found);
}

// For messages: one line of ASCII, however large the value.
std::string shown(const json& value) {
  if (value.is_structured()) return value.type_name();
  return fmt::format("{:.60}", value.dump(-1, ' ', true));
}

// nlohmann keeps the last of two equal keys without a word, so they are looked for while parsing.
json parse_object(std::string_view text) {
  std::set<std::string> keys;
  const auto check = [&keys](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::key && !keys.insert(parsed.get<std::string>()).second) {
      fail(fmt::format("key {} comes twice", shown(parsed)));
    }
    return true;
  };
  json object;
  try {
    object = json::parse(text, check);
  } catch (const json::exception& e) {
    fail(e.what());
  }
  if (!object.is_object()) fail(fmt::format("found {}, needs an object", object.type_name()));
  for (const std::string& key : keys) {
    if (key != "seed" && key != "next_batch" && key != "fingerprint") {
      fail(fmt::format("unknown key {}, needs seed, next_batch and fingerprint", shown(key)));
    }
  }
  return object;
}

const json& member(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) fail(fmt::format("key \"{}\" is missing", key));
  return *found;
}

std::uint64_t number(const json& object, const char* key, std::uint64_t most) {
  const json& value = member(object, key);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > most) {
    fail(fmt::format("\"{}\" is {}, needs a whole number from 0 to {}", key, shown(value), most));
  }
  return value.get<std::uint64_t>();
}

std::uint64_t fingerprint(const json& object) {
  const json& value = member(object, "fingerprint");
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    const char* const end = text.data() + text.size();
    std::uint64_t bits = 0;
    const auto [stop, error] = std::from_chars(text.data(), end, bits, 16);
    if (text.size() == kFingerprintDigits && error == std::errc() && stop == end) return bits;
  }
  fail(fmt::format("\"fingerprint\" is {}, needs a string of {} hex digits", shown(value),
                   kFingerprintDigits));
}

}  // namespace

std::string to_json(const LoaderState& state) {
  return fmt::format(R"({{"seed":{},"next_batch":{},"fingerprint":"{:016x}"}})", state.seed,
                     state.next_batch, state.fingerprint);
}

LoaderState loader_state_from_json(std::string_view text) {
  const json object = parse_object(text);
  LoaderState state;
  state.seed = number(object, "seed", std::numeric_limits<std::uint64_t>::max());
  state.next_batch = static_cast<std::int64_t>(
      number(object, "next_batch", std::numeric_limits<std::int64_t>::max()));
  state.fingerprint = fingerprint(object);
  return state;
}

}  // namespace shardwise
