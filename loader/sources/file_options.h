#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "shardwise/shard/error.h"

namespace shardwise {

/// Default for the most bytes of its files that a source keeps in memory. A source with more data
/// keeps none, and asks the system for each record.
///
/// Data is kept once it is read, in blocks of 1 MiB: reading a record is then a copy within memory,
/// which costs a tenth of a system call. A kept block does not change if the file changes later; if
/// a part is cut off a file before it is read, reading it is an error.
inline constexpr std::size_t kDefaultHoldBytes = std::size_t{1} << 30;

/// Called now and then while an index of a file is made, on the thread that opens the file. An
/// exception from it ends the opening.
using IndexProgress = std::function<void(std::uint64_t done_bytes, std::uint64_t all_bytes)>;

/// Where blocks of files at URLs are kept on this machine, and how many bytes of them.
struct RemoteCacheOptions {
  /// Empty: SHARDWISE_CACHE, else "shardwise" in XDG_CACHE_HOME or ~/.cache, else the folder for
  /// temporary files.
  std::filesystem::path folder = {};

  /// Absent: SHARDWISE_CACHE_BYTES, else 8 GiB. 0: blocks are not kept, and read again.
  std::optional<std::uint64_t> most_bytes = {};
};

/// Sets the cache of all sources that this process opens from now on. Any file source takes
/// "s3://BUCKET/KEY" and "https://HOST/PATH" in place of a path (docs/remote_data.md). Their bytes
/// are fetched in blocks of 1 MiB, and kept in the subfolder "blocks-1" of the folder, which the
/// processes of a user share. When it is full, the blocks used least recently go; no other file is
/// ever removed. A block whose hash is wrong is fetched again.
///
/// Throws invalid_argument if the subfolder is another user's or others may write to it; io.
void set_remote_cache(const RemoteCacheOptions& options);

}  // namespace shardwise
