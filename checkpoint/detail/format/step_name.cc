#include "shardwise/checkpoint/detail/format/step_name.h"

#include <fmt/core.h>

#include <charconv>

namespace shardwise::detail {
namespace {

/// Takes a decimal number off the front of the text.
bool take_number(std::string_view& text, std::int64_t& number) {
  const char* const begin = text.data();
  const auto [end, error] = std::from_chars(begin, begin + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<std::size_t>(end - begin));
  return true;
}

}  // namespace

std::string to_string(const StepName& name) {
  const std::string step = fmt::format("step-{:0{}}", name.step, name.digits);
  return name.generation == 1 ? step : fmt::format("{}.g{}", step, name.generation);
}

std::optional<StepName> parse_step_name(std::string_view text) {
  const std::string_view whole = text;
  StepName name;
  if (!text.starts_with("step-")) return std::nullopt;
  text.remove_prefix(5);
  const std::size_t before = text.size();
  if (!take_number(text, name.step)) return std::nullopt;
  if (const auto digits = static_cast<int>(before - text.size());
      digits < 8 || name.step == 0 || whole[5] == '0')
    name.digits = digits;
  if (text.starts_with(".g")) {
    text.remove_prefix(2);
    if (!take_number(text, name.generation)) return std::nullopt;
  }
  // No sign, no ".g1", nothing after it.
  if (name.step < 0 || name.generation < 1 || to_string(name) != whole) return std::nullopt;
  return name;
}

}  // namespace shardwise::detail
