#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "shardwise/checkpoint/attempt.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/runtime/process/rendezvous.h"

// Saves for a caller that is no C++ program, which copies the tensors by itself.
namespace shardwise {

class CheckpointManager;
struct JobSave;
struct JobStep;

namespace jobs_detail {

/// The caller's work before a save, and whether it waits for the save.
struct CallersPart {
  double waited_seconds = 0;
  bool is_waiting = true;
  std::size_t copied_bytes = 0;  ///< that it holds for the save
};

/// CheckpointManager::save() for a caller that has copied the tensors, and perhaps goes on:
/// SaveStats, returned and written next to the step, tell the caller's part.
SaveStats save_for_caller(CheckpointManager& manager, std::int64_t step,
                          std::vector<TensorSource> sources, SaveOptions options,
                          const CallersPart& caller);

/// The same for save_together().
SaveStats save_together(const Rendezvous& ranks, const JobStep& step, const CallersPart& caller,
                        std::vector<TensorSource> sources, const JobSave& job,
                        const EncodeOptions& encode, const PublishOptions& publish);

/// CheckpointManager::save_async() of a save that begins when another one has ended: checked before
/// the tensors are copied. Throws already_exists, unless the error is one that a save may meet and
/// the job goes on: then the save tells it.
void refuse_existing(CheckpointManager& manager, std::int64_t step);

/// The same, when they are copied: WhenOptions::interval counts from here. Throws `cancelled` if
/// the process ends before (preemption_grace).
void begin_later(CheckpointManager& manager, std::int64_t step);

/// CheckpointManager::should_save() by all processes of a rendezvous. is_told: something other than
/// a signal tells this process that it ends, as a signal would.
bool should_save_together(const Rendezvous& ranks, CheckpointManager& manager, std::int64_t step,
                          bool is_told);

/// A CheckpointAttempt for a target that may be a step in a bucket,
/// "s3://bucket/runs/step-00000100": then its directory is a generation of the step, which a commit
/// publishes, and which is sealed if it is destroyed before. Throws unsupported for other names
/// there.
std::unique_ptr<CheckpointAttempt> attempt_at(const std::filesystem::path& target,
                                              Existing existing);

/// write_shards() into the directory of one.
ShardRecord write_shards_at(const std::filesystem::path& directory, const ShardWriter& writer,
                            std::vector<TensorSource> sources, EncodeOptions options);

/// is_saved() of such a target.
bool is_saved_at(const std::filesystem::path& target);

}  // namespace jobs_detail
}  // namespace shardwise
