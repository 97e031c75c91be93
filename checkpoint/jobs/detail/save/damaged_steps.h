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

  /// Of a step that is the reason, or may be, why a save failed; nothing if there is none.
  void note(const EarlierStep& earlier);

  bool contains(std::int64_t step) const;

  /// It was saved anew.
  void forget(std::int64_t step);

  /// Whether a save of `step` may be built on what this is: not on what it replaces, perhaps as
  /// that is damaged.
  bool may_be_built_on(const EarlierStep& earlier, std::int64_t step) const;

  /// The newest step of the root on which it may, and whose manifest can be read; nothing if there
  /// is none.
  EarlierStep find_earlier(FileSystem& file_system, const std::filesystem::path& root,
                           std::int64_t step) const;

 private:
  mutable Mutex mutex_;
  std::set<std::int64_t> steps_ SHARDWISE_GUARDED_BY(mutex_);
};

}  // namespace shardwise::jobs_detail
