#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "shardwise/loader/loader_stats.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using Kind = TimelineEvent::Kind;

struct RecordedBatch {
  std::vector<std::int64_t> reads_ns;  // of its parts, in the order in which they began
  std::int64_t step_ns = 0;            // from its delivery until the job wants the next one
};

[[noreturn]] void refuse_replay(const std::string& found) {
  throw Error(ErrorCode::invalid_argument, "replay a loader: " + found);
}

std::vector<RecordedBatch> recorded_run(const Timeline& timeline) {
  if (const std::int64_t dropped = timeline.dropped(); dropped > 0) {
    refuse_replay(fmt::format("the timeline has dropped {} events", dropped));
  }
  std::vector<TimelineEvent> events = timeline.events();
  std::ranges::sort(events, {}, &TimelineEvent::begin_ns);
  std::map<std::int64_t, RecordedBatch> batches;
  std::int64_t delivered = -1, delivered_ns = 0;
  for (const TimelineEvent& event : events) {
    if (event.kind == Kind::read) {
      batches[event.batch].reads_ns.push_back(event.end_ns - event.begin_ns);
    } else if (event.kind == Kind::wait) {
      if (event.batch <= delivered) {
        refuse_replay(fmt::format("batch {} comes after batch {}, needed is one run", event.batch,
                                  delivered));
      }
      if (delivered >= 0) batches[delivered].step_ns = event.begin_ns - delivered_ns;
      delivered = event.batch;
      delivered_ns = event.end_ns;
    }
  }
  std::vector<RecordedBatch> run;
  for (auto& [number, batch] : batches) {
    if (number <= delivered) run.push_back(std::move(batch));
  }
  if (run.empty()) refuse_replay("the timeline has no batch");
  return run;
}

// Works as readers and ring do: the thread that is free first takes the next part, and a batch is
// begun when fewer than `prefetch` batches are begun and not taken.
double replayed(const std::vector<RecordedBatch>& run, const ReplayOptions& options) {
  if (options.threads < 1 || options.prefetch < 1) {
    refuse_replay(fmt::format("{} threads and {} batches ahead, needed is 1 or more of both",
                              options.threads, options.prefetch));
  }
  std::vector<std::int64_t> free_ns(static_cast<std::size_t>(options.threads), 0);
  std::vector<std::int64_t> taken_ns;
  const auto prefetch = static_cast<std::size_t>(options.prefetch);
  std::int64_t wanted_ns = 0;
  for (std::size_t b = 0; b < run.size(); ++b) {
    const std::int64_t may_begin_ns = b < prefetch ? 0 : taken_ns[b - prefetch];
    std::int64_t ready_ns = may_begin_ns;
    for (const std::int64_t read_ns : run[b].reads_ns) {
      std::int64_t& thread = *std::ranges::min_element(free_ns);
      thread = std::max(thread, may_begin_ns) + read_ns;
      ready_ns = std::max(ready_ns, thread);
    }
    taken_ns.push_back(std::max(ready_ns, wanted_ns));
    wanted_ns = taken_ns.back() + run[b].step_ns;
  }
  return static_cast<double>(wanted_ns) * 1e-9;
}

}  // namespace

double replay_seconds(const Timeline& timeline, const ReplayOptions& options) {
  return replayed(recorded_run(timeline), options);
}

std::string what_if(const Timeline& timeline, const ReplayOptions& recorded, int cores) {
  const std::vector<RecordedBatch> run = recorded_run(timeline);
  const double now = replayed(run, recorded);
  const auto faster = [&](const ReplayOptions& options) {
    return 100 * (now / std::max(1e-9, replayed(run, options)) - 1);
  };
  const std::string more_threads =
      recorded.threads + 2 <= cores
          ? fmt::format("2 more threads: {:.0f} % faster",
                        faster({recorded.threads + 2, recorded.prefetch}))
          : fmt::format("more threads: faster only if they wait for files, as there are {} cores",
                        cores);
  return fmt::format("{}; 2 more batches ahead: {:.0f} % faster", more_threads,
                     faster({recorded.threads, recorded.prefetch + 2}));
}

}  // namespace shardwise
