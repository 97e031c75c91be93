#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/checkpoint/save.h"
#include "shardwise/checkpoint/steps.h"
#include "shardwise/runtime/process/rendezvous.h"
#include "shardwise/shard/error.h"

namespace shardwise {

class CheckpointManager;

/// How the processes of a job save one checkpoint; alike on all ranks but for the functions.
struct JobSave {
  Existing existing = Existing::fail;

  /// Rank r is the writer r; as ShardWriter::starts. Empty: one process.
  std::vector<std::int64_t> starts = {};

  /// `describe` gives a rank's objects that are no tensors, as any bytes. `document` makes those of
  /// all ranks, in their order, PublishOptions::objects_json, on rank 0. Null: rank 0's text is it.
  Rendezvous::Work describe = nullptr;
  std::function<std::string(std::vector<Bytes>)> document = nullptr;

  /// Called on rank 0, for all: EncodeOptions::unchanged_since. May be null.
  std::function<std::filesystem::path()> unchanged_since = nullptr;
};

/// Saves a checkpoint of any name by all processes of a rendezvous, which call it together: as
/// save_checkpoint() does by one. `target` must be the same folder for all. Throws on every rank: a
/// rank gets its own error as it is, and the others one that tells it.
///
///   save_together(GroupRendezvous(group.duplicate(), "save model.sw"), "model.sw",
///                 {tensor_source("w", w)}, {.starts = {0, 1}});
SaveStats save_together(const Rendezvous& ranks, const std::filesystem::path& target,
                        std::vector<TensorSource> sources, JobSave job,
                        const EncodeOptions& encode = {}, const PublishOptions& publish = {});

/// A step that the processes of a job save in the root of a manager, which each has without a
/// group.
struct JobStep {
  CheckpointManager& manager;
  std::int64_t step;

  /// All agree by this one how the save has ended (WriteOptions::on_save_error), as an error may
  /// have ended the other. Used if saves may fail.
  const Rendezvous& ends;
};

/// The same for a step, with the manager's other work of a save: damaged steps are replaced; the
/// step is an increment, has parity, and removes the steps that it supersedes; the job may go on
/// after an error. Threads and files are the manager's.
SaveStats save_together(const Rendezvous& ranks, const JobStep& step,
                        std::vector<TensorSource> sources, const JobSave& job,
                        const EncodeOptions& encode = {}, const PublishOptions& publish = {});

/// CheckpointManager::latest() by all processes of a rendezvous, which call it together. Each has a
/// manager of the root, without a group.
std::optional<LatestStep> latest_together(const Rendezvous& ranks, CheckpointManager& manager);

/// The same for restore_latest(): all restore the same step, or `step`, which is all that is tried.
/// Damage for one rank is damage for all. Throws no_such_name if there is no such step, corrupt if
/// it is damaged.
std::optional<LatestStep> restore_together(const Rendezvous& ranks, CheckpointManager& manager,
                                           const std::function<void(const Step&)>& restore,
                                           std::optional<std::int64_t> step = {});

}  // namespace shardwise
