#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <utility>

#include "shardwise/jobs/detail/save/terms.h"
#include "shardwise/jobs/manager.h"

namespace shardwise::jobs_detail {

/// Doors of managers that other components of jobs use, and programs do not.
struct ManagerInternals {
  using Impl = CheckpointManager::Impl;

  /// A manager of a root, with extra terms.
  static CheckpointManager manager(const std::filesystem::path& root, ManagerOptions options,
                                   const RootTerms& terms) {
    return CheckpointManager(root, std::move(options), terms);
  }

  /// For those that restore by other means. A damaged step is replaced when it is saved again, and
  /// no increment is built on it. After a restored one the next new step sets later ones aside.
  static void note_damaged(CheckpointManager& manager, std::int64_t step);
  static void note_restored(CheckpointManager& manager, std::int64_t step);

  static Impl& impl(const CheckpointManager& manager) { return *manager.impl_; }

  /// Returns when the save has ended. Nothing if it threw: the error stays for wait().
  static std::optional<SaveStats> settle(const PendingSave& save) { return save.settle(); }
};

}  // namespace shardwise::jobs_detail
