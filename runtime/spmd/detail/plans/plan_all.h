#pragma once

#include <cstdint>
#include <functional>

#include "shardwise/runtime/spmd/plans.h"

namespace shardwise::detail {

/// Calls plan(i) for each 0 <= i < count on the threads of the options, and reports progress:
/// `before` plans were made already, of `of`. Exceptions of plan() pass through.
void plan_all(std::int64_t count, const CompareOptions& options,
              const std::function<void(std::int64_t)>& plan, std::int64_t before, std::int64_t of);

}  // namespace shardwise::detail
