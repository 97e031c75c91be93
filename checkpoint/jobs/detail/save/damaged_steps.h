#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <span>

#include "shardwise/checkpoint/detail/write/unchanged.h"
#include "shardwise/checkpoint/steps.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise::jobs_detail {

using namespace detail;

/// Steps that a manager has found damaged: the job may come to them again, and no increment is
/// built on them. Thread-safe.
class DamagedSteps {
 public:
  void note(std::int64_t step);
  void note(std::span<const RejectedStep> rejected);

  /// Notes a step that may be the reason of a failed save; does nothing if `earlier` is empty.
  void note(const EarlierStep& earlier);

  bool contains(std::int64_t step) const;

  /// The step was saved again.
  void forget(std::int64_t step);

  /// True if a save of `step` may be built on `earlier`: a step that is not damaged and that the
  /// save does not replace.
  bool may_be_built_on(const EarlierStep& earlier, std::int64_t step) const;

  /// The newest step of the root that passes may_be_built_on() and whose manifest can be read;
  /// empty if no step does.
  EarlierStep find_earlier(FileSystem& file_system, const std::filesystem::path& root,
                           std::int64_t step) const;

 private:
  mutable Mutex mutex_;
  std::set<std::int64_t> steps_ SHARDWISE_GUARDED_BY(mutex_);
};

}  // namespace shardwise::jobs_detail
