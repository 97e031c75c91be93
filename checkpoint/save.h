#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "shardwise/checkpoint/info.h"
#include "shardwise/runtime/sharded_array.h"

namespace shardwise {

/// A tensor to be saved: what it is, and how to read any box of it. The pieces on disk are the
/// distinct boxes of spec.sharding.
struct TensorSource {
  std::string name;
  ArraySpec spec;

  /// Fills the span with the elements of the box, row-major. Called from several threads at once.
  /// What it throws ends the save with that exception. Must not save with the same manager, close
  /// it or wait for this save: they wait for it.
  std::function<void(const Box&, std::span<std::byte>)> read;
};

/// Shares the array: no copy, and no one can write under it.
TensorSource tensor_source(std::string name, ShardedArray array);

/// What to do where the step is already there.
enum class Existing {
  fail,     ///< throws already_exists before anything is written
  replace,  ///< writes a new generation; the old one stays valid until the new one is committed
};

struct SaveOptions {
  Codec codec = Codec::automatic;
  std::string user_json = "{}";  ///< the caller's own; any JSON value
  Existing existing = Existing::fail;

  /// Most host bytes held at once beyond the tensors and what describes them (about 100 bytes per
  /// chunk of 1 MiB). The buffers are kept for the manager's next save. At least 8 MiB.
  std::size_t memory_budget_bytes = std::size_t{256} << 20;

  /// Must not save with the same manager, close it or wait for this save.
  ProgressFunction progress = nullptr;
};

/// What a save did.
struct SaveStats {
  std::filesystem::path directory;
  std::size_t logical_bytes = 0;
  std::size_t stored_bytes = 0;  ///< of chunks, padding and index left out
  std::size_t file_bytes = 0;
  std::int64_t chunks = 0;
  double blocked_seconds = 0;  ///< how long the caller of save or save_async waited
  double total_seconds = 0;    ///< until it was committed

  /// Why older checkpoints that this one supersedes could not be removed after the commit; empty
  /// where all went well.
  std::string cleanup_error;
};

}  // namespace shardwise
