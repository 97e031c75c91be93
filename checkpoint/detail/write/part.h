#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/checkpoint/detail/write/shard_file.h"
#include "shardwise/checkpoint/detail/write/staging.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// The means of writing shard files.
struct PartTools {
  FileSystem& file_system;
  const Executor& executor;
  std::unique_ptr<StagingPool>& pool;  ///< kept from one save to the next
};

/// The directory of an attempt.
struct AttemptDirectory {
  std::filesystem::path path;
  bool is_reused = false;  ///< it was a spare: files are in it
  bool is_shared = false;  ///< other processes write in it, too
};

/// Gives the step before, whose chunks are not written again if they have not changed. Called once,
/// if there may be such chunks.
using FindEarlier = std::function<EarlierStep()>;

/// Writes the shard files of a plan, one after the other; they are on the disk when it returns, and
/// each has passed a reader's checks. Throws as CheckpointManager::save does.
std::vector<WrittenShardFile> write_part(const PartTools& tools, const AttemptDirectory& directory,
                                         const SavePlan& plan, const EncodeOptions& options,
                                         const FindEarlier& find_earlier = nullptr);

}  // namespace shardwise::detail
