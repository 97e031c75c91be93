#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardwise::detail {

/// The parts of the name of a committed checkpoint's directory: docs/checkpoint_format.md, heading
/// "Directory layout".
struct StepName {
  std::int64_t step = 0;
  std::int64_t generation = 1;
  int digits = 8;  ///< least, with zeros in front

  auto operator<=>(const StepName&) const = default;
};

/// "step-00000100", "step-00000100.g2"; "step-100" with fewer digits.
std::string to_string(const StepName& name);

/// Inverse, for any number of zeros in front: other programs write "step-100". Absent for every
/// other name, attempts and trash among them.
std::optional<StepName> parse_step_name(std::string_view text);

}  // namespace shardwise::detail
