#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "shardwise/loader/loader_options.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise {
namespace {

using nlohmann::json;

constexpr std::array kKeys{"seed",  "next_batch", "source", "stages", "batch_size",
                           "order", "last_batch", "bad",    "digest"};

[[noreturn]] void fail(const std::string& found) {
  throw Error(ErrorCode::invalid_argument, "read loader state: " + found);
}

// For messages: one line of ASCII, however large the value.
std::string shown(const json& value) {
  if (value.is_structured()) return value.type_name();
  return fmt::format("{:.60}", value.dump(-1, ' ', true));
}

// nlohmann silently keeps the last of two equal keys, so repeated keys are looked for while
// parsing.
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
  if (!object.is_object()) fail(fmt::format("found {}, needed is an object", object.type_name()));
  for (const std::string& key : keys) {
    if (std::ranges::find(kKeys, key) == kKeys.end()) {
      fail(fmt::format("unknown key {}, needed is {}", shown(key), fmt::join(kKeys, ", ")));
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
    fail(fmt::format("\"{}\" is {}, needed is a whole number from 0 to {}", key, shown(value),
                     most));
  }
  return value.get<std::uint64_t>();
}

// Hash64 or Hash128, as hex digits.
template <class Hash>
Hash hash(const json& object, const char* key) {
  const json& value = member(object, key);
  Hash bits{};
  if (value.is_string() && from_hex(value.get_ref<const std::string&>(), bits)) return bits;
  fail(fmt::format("\"{}\" is {}, needed is a string of {} hex digits", key, shown(value),
                   2 * sizeof(Hash)));
}

template <class Enum, std::size_t kCount>
Enum choice(const json& object, const char* key, const std::array<Enum, kCount>& choices) {
  const json& value = member(object, key);
  std::string known;
  for (const Enum one : choices) {
    if (value.is_string() && value.get_ref<const std::string&>() == name(one)) return one;
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", name(one));
  }
  fail(fmt::format("\"{}\" is {}, needed is one of {}", key, shown(value), known));
}

}  // namespace

std::string to_json(const LoaderState& state) {
  return fmt::format(R"({{"seed":{},"next_batch":{},"source":"{}","stages":"{}","batch_size":{},)"
                     R"("order":"{}","last_batch":"{}","bad":"{}","digest":"{}"}})",
                     state.seed, state.next_batch, to_hex(state.source), to_hex(state.stages),
                     state.batch_size, name(state.order), name(state.last_batch),
                     name(state.bad_records), to_hex(Hash128{state.digest.high, state.digest.low}));
}

LoaderState loader_state_from_json(std::string_view text) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  const json object = parse_object(text);
  LoaderState state;
  state.seed = number(object, "seed", std::numeric_limits<std::uint64_t>::max());
  state.next_batch = static_cast<std::int64_t>(number(object, "next_batch", kMost));
  state.source = hash<std::uint64_t>(object, "source");
  state.stages = hash<std::uint64_t>(object, "stages");
  state.batch_size = static_cast<std::int64_t>(number(object, "batch_size", kMost));
  state.order = choice(object, "order", std::array{RecordOrder::sequential, RecordOrder::shuffled});
  state.last_batch =
      choice(object, "last_batch", std::array{LastBatch::drop, LastBatch::pad, LastBatch::wrap});
  state.bad_records =
      choice(object, "bad", std::array{BadRecords::fail, BadRecords::substitute, BadRecords::mask});
  const Hash128 digest = hash<Hash128>(object, "digest");
  state.digest = {digest.high, digest.low};
  return state;
}

}  // namespace shardwise
