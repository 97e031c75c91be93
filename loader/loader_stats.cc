#include "shardwise/loader/loader_stats.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardwise {

namespace {

/// "12.3 s of 40.0 s", and of a short run "1.2 ms of 40.0 ms".
std::string part_of(double seconds, double whole) {
  const double scale = whole < 1 ? 1e3 : 1;
  return fmt::format("{0:.1f} {2} of {1:.1f} {2}", seconds * scale, whole * scale,
                     whole < 1 ? "ms" : "s");
}

}  // namespace

std::string bottleneck(const LoaderStats& stats) {
  const std::string waited =
      "the job waited " + part_of(stats.consumer_waited_seconds, stats.seconds);
  const double per_reader = stats.readers_waited_seconds / std::max(1, stats.threads);
  if (stats.consumer_waited_seconds <= per_reader) {
    return fmt::format("the job: the readers waited {} for room; {}",
                       part_of(per_reader, stats.seconds), waited);
  }
  double busy = 0;
  for (const StageSeconds& stage : stats.stages) busy += stage.seconds;
  if (busy <= 0) return "the readers: " + waited;
  const auto longest = std::ranges::max_element(stats.stages, {}, &StageSeconds::seconds);
  return fmt::format("the readers: {} takes {:.0f} % of their time; {}", longest->stage,
                     100 * longest->seconds / busy, waited);
}

}  // namespace shardwise
