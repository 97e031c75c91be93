#include "shardwise/jobs/detail/save/superseded.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "shardwise/checkpoint/detail/format/metrics.h"
#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/directory_state.h"
#include "shardwise/checkpoint/detail/root/marks/named_steps.h"
#include "shardwise/shard/error.h"

namespace shardwise::jobs_detail {
namespace {

std::vector<std::int64_t> numbers_of(const std::vector<Step>& steps) {
  std::vector<std::int64_t> numbers;
  numbers.reserve(steps.size());
  for (const Step& step : steps) numbers.push_back(step.step);
  return numbers;
}

const Step& find(const std::vector<Step>& steps, std::int64_t number) {
  return *std::ranges::lower_bound(steps, number, {}, &Step::step);
}

std::optional<double> metric_of(FileSystem& files, const Step& step, const std::string& name) {
  std::map<std::string, double> metrics;
  try {
    metrics = metrics_of(read_manifest(open_directory(files, step.directory)).objects_json);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::io) throw;
    return std::nullopt;  // damaged, or removed since
  }
  const auto found = metrics.find(name);
  if (found == metrics.end()) return std::nullopt;
  return found->second;
}

}  // namespace

std::vector<std::int64_t> superseded(FileSystem& files, const std::filesystem::path& root,
                                     const std::vector<Step>& steps, const KeepOptions& rules,
                                     const LatestSteps& finder, Failures& failures) {
  std::set<std::int64_t> named;
  for (const NamedStep& one : named_steps(files, root)) named.insert(one.step);
  const auto is_valid = [&](std::int64_t number) {
    const Step& step = find(steps, number);
    bool valid = false;
    failures.attempt([&] { valid = finder.why_invalid({step.step, step.generation}).empty(); });
    return valid;
  };
  const auto value = [&](std::int64_t number) {
    return metric_of(files, find(steps, number), rules.best->metric);
  };
  const auto time = [&](std::int64_t number) {
    return DirectoryState(find(steps, number).directory / kManifestName).modified_seconds();
  };
  return not_kept(numbers_of(steps), rules, named,
                  {.is_valid = is_valid, .value = value, .time = time});
}

std::optional<Step> best_of(FileSystem& files, const std::vector<Step>& steps,
                            const BestSteps& best) {
  const auto value = [&](std::int64_t number) {
    return metric_of(files, find(steps, number), best.metric);
  };
  const std::vector<std::int64_t> ranked =
      ranked_by(numbers_of(steps), best, {.is_valid = {}, .value = value, .time = {}});
  if (ranked.empty()) return std::nullopt;
  return find(steps, ranked.front());
}

}  // namespace shardwise::jobs_detail
