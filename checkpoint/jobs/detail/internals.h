#pragma once

#include <filesystem>
#include <optional>
#include <utility>

#include "shardwise/jobs/detail/save/terms.h"
#include "shardwise/jobs/manager.h"

namespace shardwise::jobs_detail {

/// What reshards and tiers use of managers, and programs do not.
struct ManagerInternals {
  /// A manager of a root of which its user says more.
  static CheckpointManager manager(const std::filesystem::path& root, ManagerOptions options,
                                   const RootTerms& terms) {
    return CheckpointManager(root, std::move(options), terms);
  }

  /// Returns when the save has ended. Nothing if it threw: the error stays for wait().
  static std::optional<SaveStats> settle(const PendingSave& save) { return save.settle(); }
};

}  // namespace shardwise::jobs_detail
