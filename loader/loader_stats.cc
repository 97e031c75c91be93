#include "shardwise/loader/loader_stats.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardwise {

std::string bottleneck(const LoaderStats& stats) {
  const std::string waited = fmt::format("the job waited {:.1f} s of {:.1f} s",
                                         stats.consumer_waited_seconds, stats.seconds);
  const double per_reader = stats.readers_waited_seconds / std::max(1, stats.threads);
  if (stats.consumer_waited_seconds <= per_reader) {
    return fmt::format("the job: the readers waited {:.1f} s of {:.1f} s for room; {}", per_reader,
                       stats.seconds, waited);
  }
  double busy = 0;
  for (const StageSeconds& stage : stats.stages) busy += stage.seconds;
  if (busy <= 0) return "the readers: " + waited;
  const auto longest = std::ranges::max_element(stats.stages, {}, &StageSeconds::seconds);
  return fmt::format("the readers: {} takes {:.0f} % of their time; {}", longest->stage,
                     100 * longest->seconds / busy, waited);
}

}  // namespace shardwise
