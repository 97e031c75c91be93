#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "shardwise/bucket/detail/bucket_root.h"
#include "shardwise/checkpoint/detail/root/spare.h"
#include "shardwise/checkpoint/detail/write/save_plan.h"
#include "shardwise/checkpoint/detail/write/staging.h"
#include "shardwise/checkpoint/detail/write/unchanged.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/jobs/policies.h"
#include "shardwise/runtime/parallel.h"
#include "shardwise/runtime/process/process_group.h"
#include "shardwise/storage/file.h"

namespace shardwise::jobs_detail {

using namespace detail;

/// The context that the saves of one root share.
struct SaveContext {
  FileSystem& file_system;
  const std::filesystem::path& root;
  const Executor& executor;
  std::unique_ptr<StagingPool>& pool;             ///< kept from one save to the next
  std::vector<std::filesystem::path>& leftovers;  ///< leases that could not be removed
  Spare& spare;

  /// The number of devices of all processes of the job; 0: one more than the highest of the meshes.
  std::int64_t devices = 0;

  /// Absent: all processes have the same root.
  std::optional<LocalRoots> local_roots = {};

  /// Effort for tensors with repeated byte values only: zstd_huffman leaves our own coder out.
  Effort huffman = Effort::huffman_only;

  /// The step before, whose unchanged chunks are not written again; is set to this one when it is
  /// committed. Null: all is written.
  EarlierStep* earlier = nullptr;

  /// Finds the step before if `earlier` holds none. Called by the thread that saves.
  std::function<EarlierStep()> find_earlier = nullptr;

  /// The root if it is in a bucket; null: a folder.
  bucket_detail::BucketRoot* bucket = nullptr;

  std::int64_t most_failed_saves = 0;  ///< as SaveTerms has it
  bool is_damaged = false;             ///< as SaveRequest has it
};

/// Writes a step of a root together with the other processes of the group, and commits it; returns
/// all of SaveStats but the total times and the errors of cleaning up. Requires arguments that
/// CheckpointManager has checked, and a group that serves this save alone. Throws as
/// CheckpointManager::save does, in every process; then nothing new is listed.
SaveStats run_save(const SaveContext& context, const ProcessGroup& group, std::int64_t step,
                   std::vector<TensorSource> sources, const SaveOptions& options);

}  // namespace shardwise::jobs_detail
