#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "shardwise/checkpoint/detail/root/failures.h"
#include "shardwise/checkpoint/steps.h"
#include "shardwise/jobs/detail/policy/retention.h"
#include "shardwise/jobs/detail/save/latest_step.h"
#include "shardwise/jobs/policies.h"
#include "shardwise/storage/file.h"

// The rules of retention, asked about the steps of a root.
namespace shardwise::jobs_detail {

using namespace detail;

/// Returns those of the ascending steps of a root that neither the rules nor a name keeps. A step
/// whose validity cannot be read does not count, and is noted in `failures`. Throws io if a metric
/// cannot be read, and as named_steps() and not_kept() do.
std::vector<std::int64_t> superseded(FileSystem& files, const std::filesystem::path& root,
                                     const std::vector<Step>& steps, const KeepOptions& rules,
                                     const LatestSteps& finder, Failures& failures);

/// The best of the steps; nothing if none has the metric. Throws io.
std::optional<Step> best_of(FileSystem& files, const std::vector<Step>& steps,
                            const BestSteps& best);

}  // namespace shardwise::jobs_detail
