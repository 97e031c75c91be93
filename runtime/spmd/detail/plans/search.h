#pragma once

#include <cstdint>
#include <vector>

#include "shardwise/runtime/spmd/detail/plans/trials.h"

namespace shardwise::detail {

/// How many choices there are; most + 1 if more than `most`.
std::int64_t choices_of(const Trials& trials, std::int64_t most);

/// The best of all. Plans each.
Choice best_of_all(Trials& trials);

/// From each of these on, the best first, one group after the other is cut as well as it may be, as
/// long as that makes the plan better; then, from the best that was found, two groups at once. Ends
/// when nothing helps, or when no more plans may be made.
Choice best_from(Trials& trials, const std::vector<Choice>& starts);

}  // namespace shardwise::detail
