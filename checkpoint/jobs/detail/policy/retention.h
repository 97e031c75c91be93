#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "shardwise/jobs/policies.h"

// Which steps of a root stay after a commit.
namespace shardwise::jobs_detail {

/// Facts about a step, each asked for only if a rule needs it.
struct StepFacts {
  /// True if it can be restored, as far as latest() looks.
  std::function<bool(std::int64_t step)> is_valid;

  /// The value of the metric that BestSteps names; absent if the step lacks it.
  std::function<std::optional<double>(std::int64_t step)> value;

  /// When it was committed, in seconds since 1970.
  std::function<std::int64_t(std::int64_t step)> time;
};

/// Throws invalid_argument, beginning with `what`, if a number is negative or a metric has no name.
void check_retention(const KeepOptions& rules, const std::string& what);

/// The steps that have the metric and are no NaN, the best first; of equal ones the newer first.
std::vector<std::int64_t> ranked_by(std::span<const std::int64_t> steps, const BestSteps& best,
                                    const StepFacts& facts);

/// Those of the steps, which ascend, that no rule keeps. Without rules none. The newest always
/// stays, and the newest valid one if a rule counts valid steps. Throws no_such_name if there is a
/// rule for the best, and no step has its metric.
std::vector<std::int64_t> not_kept(std::span<const std::int64_t> steps, const KeepOptions& rules,
                                   const std::set<std::int64_t>& pinned, const StepFacts& facts);

}  // namespace shardwise::jobs_detail
