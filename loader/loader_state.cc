#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <string>

#include "shardwise/loader/detail/files/shown_text.h"
#include "shardwise/loader/loader_options.h"
#include "shardwise/loader/sources/detail/json_value.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/hash.h"

namespace shardwise {
namespace {

constexpr std::array kKeys{"seed",  "next_batch", "source", "stages", "batch_size",
                           "order", "last_batch", "bad",    "digest"};

[[noreturn]] void fail(const std::string& found) {
  throw Error(ErrorCode::invalid_argument, "read loader state: " + detail::one_line(found));
}

/// A key of the state, and its value in the text.
struct Member {
  bool is_there = false;
  detail::JsonValue value = {};
  std::string text = {};
};

using Members = std::array<Member, kKeys.size()>;

// For messages: one line of ASCII, however large the value.
std::string shown(const Member& member) {
  if (member.value.is_text) return fmt::format("\"{}\"", detail::shown_text(member.text));
  return member.value.shape.empty() ? detail::shown_text(member.text) : "a list";
}

Members read_members(std::string_view text) {
  Members members;
  const auto target = [&members](std::string_view key) -> detail::JsonTarget {
    const auto known = std::ranges::find(kKeys, key);
    if (known == kKeys.end()) {
      fail(fmt::format("unknown key \"{}\", needed is {}", detail::shown_text(key),
                       fmt::join(kKeys, ", ")));
    }
    Member& member = members[static_cast<std::size_t>(known - kKeys.begin())];
    if (member.is_there) fail(fmt::format("key \"{}\" comes twice", key));
    member.is_there = true;
    return {.value = &member.value, .text = &member.text};
  };
  try {
    detail::read_json_object(text, target);
  } catch (const detail::JsonFault& fault) {
    fail(fault.found);
  }
  return members;
}

const Member& member_of(const Members& members, std::string_view key) {
  const auto number = static_cast<std::size_t>(std::ranges::find(kKeys, key) - kKeys.begin());
  if (!members[number].is_there) fail(fmt::format("key \"{}\" is missing", key));
  return members[number];
}

std::uint64_t number(const Members& members, std::string_view key, std::uint64_t most) {
  const Member& member = member_of(members, key);
  const char* const end = member.text.data() + member.text.size();
  std::uint64_t found = 0;
  if (member.value.has_number && member.value.shape.empty()) {
    const auto [read_to, problem] = std::from_chars(member.text.data(), end, found);
    if (read_to == end && problem == std::errc() && found <= most) return found;
  }
  fail(
      fmt::format("\"{}\" is {}, needed is a whole number from 0 to {}", key, shown(member), most));
}

// Hash64 or Hash128, as hex digits.
template <class Hash>
Hash hash(const Members& members, std::string_view key) {
  const Member& member = member_of(members, key);
  Hash bits{};
  if (member.value.is_text && from_hex(member.text, bits)) return bits;
  fail(fmt::format("\"{}\" is {}, needed is a string of {} hex digits", key, shown(member),
                   2 * sizeof(Hash)));
}

template <class Enum, std::size_t kCount>
Enum choice(const Members& members, std::string_view key, const std::array<Enum, kCount>& choices) {
  const Member& member = member_of(members, key);
  std::string known;
  for (const Enum one : choices) {
    if (member.value.is_text && member.text == name(one)) return one;
    known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", name(one));
  }
  fail(fmt::format("\"{}\" is {}, needed is one of {}", key, shown(member), known));
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
  const Members members = read_members(text);
  LoaderState state;
  state.seed = number(members, "seed", std::numeric_limits<std::uint64_t>::max());
  state.next_batch = static_cast<std::int64_t>(number(members, "next_batch", kMost));
  state.source = hash<std::uint64_t>(members, "source");
  state.stages = hash<std::uint64_t>(members, "stages");
  state.batch_size = static_cast<std::int64_t>(number(members, "batch_size", kMost));
  state.order =
      choice(members, "order", std::array{RecordOrder::sequential, RecordOrder::shuffled});
  state.last_batch =
      choice(members, "last_batch", std::array{LastBatch::drop, LastBatch::pad, LastBatch::wrap});
  state.bad_records = choice(
      members, "bad", std::array{BadRecords::fail, BadRecords::substitute, BadRecords::mask});
  const Hash128 digest = hash<Hash128>(members, "digest");
  state.digest = {digest.high, digest.low};
  return state;
}

}  // namespace shardwise
