#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/checkpoint/detail/root/marks/lease.h"
#include "shardwise/checkpoint/steps.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

// Operations of a root's users. Several processes may run any of them at the same time.

/// Makes the root if it is not there, and the folders above it, on the disk when it returns. Only
/// looks at one that is there. Throws io if it is not a directory.
void make_root(FileSystem& file_system, const std::filesystem::path& root);

/// Removes a file, or a directory with all it holds. It is no error if the path is missing, or if
/// another process removes it at the same time.
void remove_tree(FileSystem& file_system, const std::filesystem::path& path);

/// Removes a checkpoint: first its name, on the disk, then its bytes, so that no one finds half of
/// it. It is no error if it is missing: another process was faster.
void remove_checkpoint(FileSystem& file_system, const std::filesystem::path& root,
                       const StepName& name);

/// A checkpoint that has lost its name: bytes to be removed.
struct Trash {
  std::filesystem::path directory;  ///< holds the bytes
  std::filesystem::path was, is;    ///< names before and after; renamed back, it is a checkpoint
};

/// The first half of that: its name is gone, on the disk; nothing if it is missing. The directory
/// gets a trash name. If the file system cannot rename the directory (a lower layer's in an
/// overlay), its manifest is renamed instead: so it is no checkpoint either.
std::optional<Trash> trash_checkpoint(FileSystem& file_system, const std::filesystem::path& root,
                                      const StepName& name);

/// True if the writer of this lease may be at work. A lease is renamed into place complete, so an
/// empty or unknown one has no live owner.
bool has_live_owner(FileSystem& file_system, const std::filesystem::path& lease,
                    const GarbageOptions& options = {});

/// The writer of this lease, if it may be at work.
std::optional<LeaseOwner> live_owner(FileSystem& file_system, const std::filesystem::path& lease,
                                     const GarbageOptions& options = {});

/// A root's path, which stays if the program goes to another directory. Throws io.
std::filesystem::path absolute_root(const std::filesystem::path& root);

/// The committed names in a root, ascending by step and generation.
std::vector<StepName> committed_names(FileSystem& file_system, const std::filesystem::path& root);

/// Throws already_exists, which names the save's other options, if a step is there that is not set
/// aside.
void refuse_existing(FileSystem& file_system, const std::filesystem::path& root, std::int64_t step);

/// The error of Existing::skip if something is at `path` that is not a valid checkpoint.
Error not_skipped(const std::filesystem::path& path, const std::string& reason);

/// Removes what dead processes have left in a root: attempts, leases, pins, trash. Attempts and
/// trash go when the root is synced, so that no checkpoint whose bytes are gone comes back. Goes on
/// after an error, and throws the first one at the end.
GarbageReport collect_root_garbage(FileSystem& file_system, const std::filesystem::path& root,
                                   const GarbageOptions& options = {});

}  // namespace shardwise::detail
