#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/runtime/process/process_group.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// A file of one process that another one gets a copy of.
struct FileTransfer {
  int from, to;
  std::string name;
  std::uint64_t bytes;

  bool operator==(const FileTransfer&) const = default;
};

/// A transfer that did not arrive.
struct FailedTransfer {
  std::size_t number;   ///< in the list of transfers
  std::string problem;  ///< why its sender could not read the file, or what came instead
};

/// Copies files between processes that see no common file system. All processes of the group call
/// it with the same list. `source` says where this process has a file; what it gets goes to
/// `target` under its name and is on the disk then, but nobody has looked at its bytes. Each
/// process sends one file and takes one at a time, in parts of 8 MiB; it may be both.
///
/// Returns those transfers to this process that did not arrive, of which it has no file: the sender
/// could not read the file, or a part came with another size. Throws io if a file cannot be
/// written, cancelled if another process fails.
[[nodiscard]] std::vector<FailedTransfer> transfer_files(
    const ProcessGroup& group, FileSystem& file_system, std::span<const FileTransfer> transfers,
    const std::function<std::filesystem::path(const std::string& name)>& source,
    const std::filesystem::path& target);

}  // namespace shardwise::detail
