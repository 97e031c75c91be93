#pragma once

#include <filesystem>
#include <optional>
#include <utility>

#include "shardwise/jobs/detail/save/terms.h"
#include "shardwise/jobs/manager.h"

namespace shardwise::jobs_detail {

/// Doors of managers that reshards and tiers use, and programs do not.
struct ManagerInternals {
  /// A manager of a root, with extra terms.
  static CheckpointManager manager(const std::filesystem::path& root, ManagerOptions options,
                                   const RootTerms& terms) {
    return CheckpointManager(root, std::move(options), terms);
  }

  /// Returns when the save has ended. Nothing if it threw: the error stays for wait().
  static std::optional<SaveStats> settle(const PendingSave& save) { return save.settle(); }
};

}  // namespace shardwise::jobs_detail
