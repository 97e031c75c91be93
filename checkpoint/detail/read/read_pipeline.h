#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// Bytes of one file that are wanted.
struct ReadItem {
  std::size_t file;
  std::uint64_t address;
  std::size_t bytes;

  /// ReadJob::fetch reads it by itself, to where it belongs.
  bool fetched = false;
};

/// What to read, and what to do with it.
struct ReadJob {
  std::span<const std::unique_ptr<File>> files;

  /// Ordered by file and address; they do not overlap.
  std::span<const ReadItem> items;

  /// Where it is given, reads begin and end on pages, which what passes the page cache by has to.
  std::vector<std::uint64_t> file_sizes = {};

  /// Called for each item that is not fetched, with its bytes, which are valid for the call. Called
  /// by up to `threads` threads at once.
  std::function<void(std::size_t item, std::span<const std::byte> bytes)> consume = nullptr;

  /// Called for each fetched item, by up to twice as many threads.
  std::function<void(std::size_t item)> fetch = nullptr;

  /// What an item is, for the message where it cannot be read.
  std::function<std::string(std::size_t item)> describe = nullptr;

  /// Called by the caller's thread now and then, at last when all is consumed; may be null.
  std::function<void()> progress = nullptr;

  /// Threads that compute. Twice as many read, so that the disk works while they do.
  int threads = 1;

  /// Most bytes of buffers and of what calls of consume and fetch take themselves, `call_bytes`
  /// each; never less than the largest item and one call need.
  std::size_t budget_bytes = SIZE_MAX;
  std::size_t call_bytes = 0;
};

/// Reads neighbouring items together, by threads of its own, each of which reads and consumes in
/// turn: what it has read is still in its processor's cache then. Throws what the first item that
/// cannot be read or consumed threw, first by its number and not by time; then nothing is under way
/// any more.
void run_read_job(const ReadJob& job);

}  // namespace shardwise::detail
