#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "shardwise/runtime/spmd/executable.h"

// Shared by the training examples: facts about a step.
namespace examples {

/// Its collectives and the planned peak at each mesh position; empty lists if there was no step.
inline nlohmann::ordered_json step_facts(const shardwise::Executable* step,
                                         std::int64_t positions) {
  nlohmann::ordered_json collectives = nlohmann::ordered_json::array(), peaks = collectives;
  if (step != nullptr) {
    for (const shardwise::CollectiveTotal& total : step->collectives()) {
      collectives.push_back({{"kind", shardwise::name(total.kind)},
                             {"count", total.count},
                             {"bytes", total.bytes},
                             {"wire_bytes", total.wire_bytes}});
    }
    for (std::int64_t p = 0; p < positions; ++p) peaks.push_back(step->memory(p).peak_bytes);
  }
  return {{"collectives", collectives}, {"planned_peak_bytes", peaks}};
}

/// Median of the steps after the first, which is compiled. 0 without such steps.
inline double median_after_first(const std::vector<double>& seconds) {
  if (seconds.empty()) return 0;
  std::vector<double> after(seconds.begin() + (seconds.size() > 1 ? 1 : 0), seconds.end());
  const auto middle = after.begin() + static_cast<std::ptrdiff_t>(after.size() / 2);
  std::nth_element(after.begin(), middle, after.end());
  return *middle;
}

}  // namespace examples
