#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/runtime/process/process_group.h"
#include "shardwise/storage/file.h"

namespace shardwise::jobs_detail {

using namespace detail;

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
/// it with the same list. `source` says where this process has a file; a file that it gets goes to
/// `target` under its name and is on the disk then, but nobody has looked at its bytes. Each
/// process sends one file and takes one at a time, in parts of 8 MiB; it may be both.
///
/// Returns those transfers to this process that did not arrive and left no file: the sender
/// could not read the file, or a part came with another size. Throws io if a file cannot be
/// written, cancelled if another process fails.
[[nodiscard]] std::vector<FailedTransfer> transfer_files(
    const ProcessGroup& group, FileSystem& file_system, std::span<const FileTransfer> transfers,
    const std::function<std::filesystem::path(const std::string& name)>& source,
    const std::filesystem::path& target);

/// A file that a process lacks and that a shard file links, which it has now as a copy.
struct LinkedWant {
  std::size_t transfer;  ///< number of the shard file's
  LinkedFile linked;

  bool operator==(const LinkedWant&) const = default;
};

/// The message. decode_linked_wants() may be given any bytes: it throws corrupt or invalid_argument
/// unless they are such a message of this rank, as it was sent, about these transfers.
Bytes encode(std::span<const LinkedWant> wants);
std::vector<LinkedWant> decode_linked_wants(std::span<const std::byte> message,
                                            std::span<const FileTransfer> transfers, int rank);

/// The outcome of the transfers of shard files to this process.
struct TakenShardFiles {
  std::vector<FailedTransfer> failed;
  std::vector<LinkedWant> sent;  ///< linked files that it lacked and was sent
};

/// Copies shard files of a step with this manifest, each with the files that it links. `source`
/// says where a shard file to send is; the files that it links are in the same directory. A linked
/// file that a process has in `earlier`, a step before or this one, gets a second name in `target`
/// and is not sent; empty: no such step. Else as transfer_files(); a transfer has failed as well if
/// a linked file cannot be read or did not arrive, and then its shard file may be there.
[[nodiscard]] TakenShardFiles transfer_shard_files(
    const ProcessGroup& group, FileSystem& file_system, const Manifest& manifest,
    std::span<const FileTransfer> transfers,
    const std::function<std::filesystem::path(const std::string& name)>& source,
    const std::filesystem::path& target, const std::filesystem::path& earlier = {});

}  // namespace shardwise::jobs_detail
