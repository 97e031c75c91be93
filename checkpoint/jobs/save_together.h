#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "shardwise/checkpoint/save.h"
#include "shardwise/runtime/process/rendezvous.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// How the processes of a job save one checkpoint; alike on all ranks but for the functions.
struct JobSave {
  Existing existing = Existing::fail;

  /// Rank r is the writer r; as ShardWriter::starts. Empty: one process.
  std::vector<std::int64_t> starts = {};

  /// `describe` gives the objects beside a rank's tensors, as any bytes. `document` makes those of
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

}  // namespace shardwise
