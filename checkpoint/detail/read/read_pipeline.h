#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "shardwise/checkpoint/detail/file.h"
#include "shardwise/runtime/parallel.h"

namespace shardwise::detail {

/// Bytes of one file that are wanted.
struct ReadItem {
  std::size_t file;
  std::uint64_t address;
  std::size_t bytes;

  /// Where to put them; null: into a buffer of the pipeline's.
  std::byte* destination = nullptr;
};

/// What to read, and what to do with it.
struct ReadJob {
  std::span<const std::unique_ptr<File>> files;

  /// Ordered by file and address; they do not overlap.
  std::span<const ReadItem> items;

  /// Called for each item, on the executor's workers, with its bytes, which are valid for the call.
  std::function<void(std::size_t item, std::span<const std::byte> bytes)> consume = nullptr;

  /// What an item is, for the message where it cannot be read.
  std::function<std::string(std::size_t item)> describe = nullptr;

  /// Called by the caller's thread now and then, at last when all is consumed; may be null.
  std::function<void()> progress = nullptr;

  /// Most bytes of buffers, though never less than the largest item. No more are taken than help.
  std::size_t buffer_bytes = SIZE_MAX;

  /// Most calls of consume at once; 0: as many as there are workers.
  std::int64_t width = 0;
};

/// Sets buffer_bytes and width for a budget, where each call of consume takes so many bytes of its
/// own: up to half of the budget is for them, but at least one call's; the buffers get what is
/// left.
void divide_budget(ReadJob& job, std::size_t budget_bytes, std::size_t call_bytes,
                   const Executor& executor);

/// Reads neighbouring items together, by threads of its own that do nothing but wait for the disk,
/// while the executor's workers consume what has arrived. Throws what the first failing read or
/// call threw; then nothing is under way any more. Call it from no worker's body.
void run_read_job(const ReadJob& job, const Executor& executor);

}  // namespace shardwise::detail
