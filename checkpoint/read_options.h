#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/runtime/sharded_array.h"
#include "shardwise/shard/error.h"

namespace shardwise {

class FileSystem;

struct ReadOptions {
  /// Most host bytes held at once beyond the target arrays.
  std::size_t memory_budget_bytes = std::size_t{256} << 20;
  int threads = 0;  ///< workers that check and decode; 0: as many as the machine has cores

  /// Keeps retention and replacing saves of any process from removing the checkpoint as long as the
  /// reader lives, by a small file next to it; not CheckpointManager::remove. If none can be made,
  /// on a read-only root or a full disk, reading goes on without: CheckpointReader::pinned().
  bool pin = true;

  /// Reads bytes that the page cache lacks past it: for a checkpoint that is read once, and for
  /// machines whose fresh memory is dear. Else the next reader finds them in memory.
  bool read_once = false;

  ProgressFunction progress = nullptr;                ///< must not read with the same reader
  std::shared_ptr<FileSystem> file_system = nullptr;  ///< for all files; null: posix_file_system()
};

/// Counts of a reader's work so far, by calls that did not fail.
struct ReadStats {
  std::int64_t chunks = 0;  ///< read and checked; each once per call, however many boxes need it
  std::size_t stored_bytes = 0;  ///< read from files
  std::size_t decoded_bytes = 0;
};

/// An array that is wanted from a checkpoint.
struct TensorRequest {
  std::string name;
  ArraySpec spec;
};

struct RestoreOptions {
  /// Requires a request for every tensor of the checkpoint, so that a job notices those it lost.
  bool exact = false;

  /// Gives the array of a request whose name the checkpoint lacks, when all others are read. Null:
  /// such a request is an error. What it throws ends the restore.
  std::function<ShardedArray(const TensorRequest&)> if_missing = nullptr;
};

}  // namespace shardwise
