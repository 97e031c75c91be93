#pragma once

#include <cstdint>
#include <vector>

#include "shardwise/runtime/spmd/detail/plans/trials.h"

namespace shardwise::detail {

/// The number of choices; most + 1 if it exceeds `most`.
std::int64_t choices_of(const Trials& trials, std::int64_t most);

/// Plans all choices, and returns the best.
Choice best_of_all(Trials& trials);

/// From each of these starts, the best first, one group after the other is cut as well as possible,
/// as long as that improves the plan; then, from the best result, two groups at once. Ends when
/// nothing helps, or when no more plans may be made.
Choice best_from(Trials& trials, const std::vector<Choice>& starts);

}  // namespace shardwise::detail
