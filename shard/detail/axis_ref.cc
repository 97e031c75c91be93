#include "shardwise/shard/detail/axis_ref.h"

#include <fmt/format.h>

#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise::detail {

AxisRef parse_axis_ref(std::string_view text, std::string_view context) {
  const auto fail = [&](const char* needed) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: \"{}\" is not an axis; needed is {}", context, text, needed));
  };
  const std::size_t colon = text.find(':');
  const std::string_view axis = text.substr(0, colon);
  if (axis.empty() || axis.find_first_of(kReservedInAxisNames) != std::string_view::npos) {
    fail("a name or a number");
  }
  if (colon == std::string_view::npos) return {axis};
  const std::string_view part = text.substr(colon + 1);
  const std::size_t close = part.find(')');
  if (!part.starts_with('(') || close == std::string_view::npos) fail("a form as in \"x:(2)4\"");
  const auto pre = parse_count(part.substr(1, close - 1));
  const auto size = parse_count(part.substr(close + 1));
  if (!pre || !size || *pre < 1 || *size < 1) fail("a form as in \"x:(2)4\", of numbers from 1");
  return {axis, *pre, *size};
}

}  // namespace shardwise::detail
