#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "shardwise/checkpoint/info.h"

namespace shardwise {

class FileSystem;

struct ReadOptions {
  /// Most host bytes held at once beyond the target arrays.
  std::size_t memory_budget_bytes = std::size_t{256} << 20;

  /// Workers that check and decode; 0: as many as the machine has cores.
  int threads = 0;

  /// Keeps the checkpoint from being removed by the retention of any process (ManagerOptions::
  /// keep_last, a replacing save) as long as the reader lives: a small file beside it says so. Not
  /// from CheckpointManager::remove. Where none can be made, on a read-only root or a full disk,
  /// reading goes on without: CheckpointReader::pinned() says so.
  bool pin = true;

  /// Opens shard files only when something of them is read, however few there are, and does not
  /// notice before that one is not there: for a directory that has some of them (TieredManager).
  bool open_as_needed = false;

  /// What the page cache does not hold is read past it and stays out of it: for a checkpoint that
  /// is read once, and where fresh memory is dear. Else the next reader finds it in memory.
  bool read_once = false;

  /// Must not read with the same reader.
  ProgressFunction progress = nullptr;

  /// For tests; null is the real one.
  std::shared_ptr<FileSystem> file_system = nullptr;
};

/// What a reader has done so far, by calls that did not fail.
struct ReadStats {
  std::int64_t chunks = 0;  ///< read and checked; each once per call, however many boxes need it
  std::size_t stored_bytes = 0;  ///< read from files
  std::size_t decoded_bytes = 0;
};

}  // namespace shardwise
