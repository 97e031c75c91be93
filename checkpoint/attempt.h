#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "shardwise/checkpoint/save.h"
#include "shardwise/runtime/process/process_group.h"
#include "shardwise/shard/error.h"

namespace shardwise {

namespace detail {
class AttemptPlace;
struct Internals;
}  // namespace detail

/// Which of a checkpoint's writers a process is.
struct ShardWriter {
  std::int64_t writer = 0;

  /// Writer w saves the data of the devices [starts[w], starts[w + 1]); the same for all writers.
  /// Ascending from 0 on, to 2^40 at most; one more than there are writers. Empty: there is one
  /// writer, of all devices. All devices of the tensors' meshes are below the last one.
  std::vector<std::int64_t> starts = {};
};

/// A writer's account of its files, for the publishing process: bytes that can be sent anywhere.
/// They hold a hash of themselves and say which attempt they belong to. Their size grows with the
/// number of tensors, and of listed boxes.
using ShardRecord = Bytes;

/// Writes the shard file of one writer into the directory of an attempt, which may be another
/// process's; it is on the disk when this returns. Of a tensor with a sharding it writes this
/// writer's boxes; a box that several writers hold is divided among them by bytes. Of a tensor with
/// boxes it writes exactly these. A tensor with neither is whole on every writer, and is divided
/// among all by bytes. Throws as CheckpointManager::save does, and not_found if the directory is
/// not there.
ShardRecord write_shards(const std::filesystem::path& directory, const ShardWriter& writer,
                         std::vector<TensorSource> sources, const EncodeOptions& options = {});

/// A checkpoint of any name, in any directory, in the making: for one process, or for several that
/// somebody else brings together, as a training framework does. One process makes the attempt and
/// tells the others its directory; each calls write_shards; the first one gets all records and
/// publishes. Until then nothing is under the checkpoint's name.
///
///   CheckpointAttempt attempt("model.sw");
///   const ShardRecord record = write_shards(attempt.directory(), {}, {tensor_source("w", w)});
///   attempt.publish({&record, 1}, {.user_json = R"({"loss": 0.5})"});
///
/// Thread-compatible. A process that fork() makes leaves its copy's files alone.
class CheckpointAttempt {
 public:
  /// Makes a hidden directory next to `target`, and the folders above them that are missing, and
  /// removes leftovers of dead processes there. Throws already_exists if the target is there and
  /// not to be replaced, invalid_argument if it names no directory, io. Existing::skip is as fail:
  /// an attempt that is made is not skipped.
  explicit CheckpointAttempt(const std::filesystem::path& target,
                             Existing existing = Existing::fail,
                             std::shared_ptr<FileSystem> file_system = nullptr);

  /// Removes the directory unless it was published.
  ~CheckpointAttempt();
  CheckpointAttempt(const CheckpointAttempt&) = delete;
  CheckpointAttempt& operator=(const CheckpointAttempt&) = delete;

  const std::filesystem::path& directory() const;

  /// Makes it the checkpoint: proves that the records, one of each writer in any order, are every
  /// element of every tensor once, and that the shard files are those that they tell of; writes
  /// index and manifest; renames. What it replaces is removed. Throws invalid_argument if records
  /// do not fit each other or are of another attempt; already_exists; corrupt, also for damaged
  /// records; io. Then nothing is published.
  SaveStats publish(std::span<const ShardRecord> records, const PublishOptions& options = {});

 private:
  friend struct detail::Internals;
  explicit CheckpointAttempt(std::unique_ptr<detail::AttemptPlace> place);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// True if a valid checkpoint is at `target`, so that Existing::skip has nothing to save. False if
/// nothing is there. Throws already_exists if something else is there, such as an empty directory
/// or a checkpoint without its files; io. Does not read the tensors' bytes.
bool is_saved(const std::filesystem::path& target,
              std::shared_ptr<FileSystem> file_system = nullptr);

/// All of it by one process. Existing::skip writes nothing if is_saved(target).
SaveStats save_checkpoint(const std::filesystem::path& target, std::vector<TensorSource> sources,
                          Existing existing = Existing::fail, const EncodeOptions& encode = {},
                          const PublishOptions& publish = {});

}  // namespace shardwise
