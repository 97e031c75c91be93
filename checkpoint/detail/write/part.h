#pragma once

#include <filesystem>
#include <vector>

#include "shardwise/checkpoint/detail/write/save.h"
#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/checkpoint/detail/write/shard_file.h"

namespace shardwise::detail {

/// The directory of an attempt.
struct AttemptDirectory {
  std::filesystem::path path;
  bool is_reused = false;   ///< it was a spare: files are in it
  bool is_shared = false;   ///< other processes write in it, too
  bool is_resumed = false;  ///< it has a resume key: whole files may be in it, and parts of files
};

/// Writes the shard files of a plan, one after the other; they are on the disk when it returns, and
/// what a reader checks of each was checked. Throws as CheckpointManager::save does.
std::vector<WrittenShardFile> write_part(const SaveContext& context,
                                         const AttemptDirectory& directory, const SavePlan& plan,
                                         const SaveOptions& options);

}  // namespace shardwise::detail
