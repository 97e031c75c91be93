#include "shardwise/jobs/detail/save/damaged_steps.h"

#include <vector>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/root/marks/set_aside.h"
#include "shardwise/shard/error.h"

namespace shardwise::jobs_detail {
namespace {

std::optional<std::int64_t> step_of(const std::filesystem::path& directory) {
  const std::optional<StepName> name = parse_step_name(directory.filename().string());
  return name ? std::optional(name->step) : std::nullopt;
}

}  // namespace

void DamagedSteps::note(std::int64_t step) {
  const MutexLock lock(mutex_);
  steps_.insert(step);
}

void DamagedSteps::note(std::span<const RejectedStep> rejected) {
  for (const RejectedStep& one : rejected) {
    const auto step = step_of(one.directory);
    if (step && !one.is_foreign) note(*step);
  }
}

void DamagedSteps::note(const EarlierStep& earlier) {
  if (const auto step = step_of(earlier.directory)) note(*step);
}

bool DamagedSteps::contains(std::int64_t step) const {
  const MutexLock lock(mutex_);
  return steps_.contains(step);
}

void DamagedSteps::forget(std::int64_t step) {
  const MutexLock lock(mutex_);
  steps_.erase(step);
}

bool DamagedSteps::may_be_built_on(const EarlierStep& earlier, std::int64_t step) const {
  const auto its = step_of(earlier.directory);
  return its && *its != step && !contains(*its);
}

EarlierStep DamagedSteps::find_earlier(FileSystem& file_system, const std::filesystem::path& root,
                                       std::int64_t step) const {
  std::vector<StepName> names;
  try {
    names = run_names(file_system, root).own;
  } catch (const Error&) {  // then all is written
  }
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    const std::filesystem::path directory = root / to_string(*name);
    if (!may_be_built_on({directory, {}}, step)) continue;
    try {
      return read_earlier_step(file_system, directory);
    } catch (const Error&) {
      continue;
    }
  }
  return {};
}

}  // namespace shardwise::jobs_detail
