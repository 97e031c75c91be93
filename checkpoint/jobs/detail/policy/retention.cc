#include "shardwise/jobs/detail/policy/retention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "shardwise/shard/error.h"

namespace shardwise::jobs_detail {
namespace {

bool keeps_all(const KeepOptions& rules) {
  return rules.last == 0 && rules.every == 0 && rules.interval.count() == 0 && !rules.best;
}

// The newest valid ones. All, if there are no more valid steps than those.
void keep_last(std::span<const std::int64_t> steps, std::int64_t count, const StepFacts& facts,
               std::set<std::int64_t>& kept) {
  std::int64_t valid = 0;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    kept.insert(*step);
    if (facts.is_valid(*step) && ++valid == count) return;
  }
}

// The first one, and then each that was committed this long after the last one kept.
void keep_one_each(std::span<const std::int64_t> steps, std::int64_t seconds,
                   const StepFacts& facts, std::set<std::int64_t>& kept) {
  std::optional<std::int64_t> last;
  for (const std::int64_t step : steps) {
    const std::int64_t time = facts.time(step);
    if (last && time - *last < seconds) continue;
    last = time;
    kept.insert(step);
  }
}

// Keeps the newer of two equal steps.
void keep_best(std::span<const std::int64_t> steps, const BestSteps& best, const StepFacts& facts,
               std::set<std::int64_t>& kept) {
  const std::vector<std::int64_t> ranked = ranked_by(steps, best, facts);
  if (ranked.empty()) {
    throw Error(ErrorCode::no_such_name,
                fmt::format("choose the steps that stay: none of {} has the metric {:?}, by which "
                            "best keeps steps: all stay",
                            steps.size(), best.metric));
  }
  const auto count = std::min(ranked.size(), static_cast<std::size_t>(best.count));
  kept.insert(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(count));
}

}  // namespace

std::vector<std::int64_t> ranked_by(std::span<const std::int64_t> steps, const BestSteps& best,
                                    const StepFacts& facts) {
  std::vector<std::pair<double, std::int64_t>> values;
  for (const std::int64_t step : steps) {
    const std::optional<double> value = facts.value(step);
    if (!value || std::isnan(*value)) continue;  // NaN is never the best
    values.emplace_back(best.order == BestSteps::Order::min ? *value : -*value, -step);
  }
  std::ranges::sort(values);
  std::vector<std::int64_t> ranked;
  ranked.reserve(values.size());
  for (const auto& [value, step] : values) ranked.push_back(-step);
  return ranked;
}

void check_retention(const KeepOptions& rules, const std::string& what) {
  const auto check = [&](const char* option, std::int64_t value, std::int64_t least) {
    if (value >= least) return;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: {} is {}, needed {} or more", what, option, value, least));
  };
  check("keep_last", rules.last, 0);
  check("keep_every", rules.every, 0);
  check("keep_interval", rules.interval.count(), 0);
  if (!rules.best) return;
  check("best.count", rules.best->count, 1);
  if (rules.best->metric.empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: best.metric is empty, needed is the name of a metric", what));
  }
}

std::vector<std::int64_t> not_kept(std::span<const std::int64_t> steps, const KeepOptions& rules,
                                   const std::set<std::int64_t>& pinned, const StepFacts& facts) {
  if (keeps_all(rules) || steps.empty()) return {};
  std::set<std::int64_t> kept = pinned;
  kept.insert(steps.back());
  if (rules.last > 0) keep_last(steps, rules.last, facts, kept);
  if (rules.every > 0) {
    std::ranges::copy_if(steps, std::inserter(kept, kept.end()),
                         [&](std::int64_t step) { return step % rules.every == 0; });
  }
  if (rules.interval.count() > 0) {
    keep_one_each(steps, rules.interval.count(), facts, kept);
  }
  if (rules.best) keep_best(steps, *rules.best, facts, kept);
  std::vector<std::int64_t> others;
  std::ranges::copy_if(steps, std::back_inserter(others),
                       [&](std::int64_t step) { return !kept.contains(step); });
  return others;
}

}  // namespace shardwise::jobs_detail
