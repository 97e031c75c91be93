#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "shardwise/runtime/spmd/detail/cut.h"
#include "shardwise/runtime/spmd/detail/plans/trials.h"

namespace shardwise::detail {

enum class Goal {
  first_that_fits,  ///< one trial after the other, on whole dims of the largest inputs
  best              ///< many side by side, weights before data
};

/// The best marks found.
struct FurtherMarks {
  Marks marks;
  Outcome outcome;
  std::optional<std::size_t> all_weights_over;  ///< the axis that cuts all weights and their state
};

/// Tries marks that cut groups over one more axis each than `cuts`: one group, then several, then
/// all weights and their state, until a trial fits. Absent if none can be planned.
std::optional<FurtherMarks> cut_further(Trials& trials, const std::vector<Cut>& cuts, Goal goal);

}  // namespace shardwise::detail
