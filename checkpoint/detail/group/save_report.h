#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/manifest.h"
#include "shardwise/checkpoint/manager.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/runtime/process/process_group.h"

// What the processes of a save tell each other: three short messages, whatever the number of
// tensors and pieces.
namespace shardwise::detail {

/// From the coordinator to all, first: where to write.
struct AttemptNotice {
  std::int64_t step = 0;
  std::string id;
  std::string directory;   ///< its name in the root
  bool is_reused = false;  ///< it was a spare: files are in it

  // Where each process writes a manifest.
  std::string user_json, objects_json;
};

/// From each process to the coordinator when its files are on the disk: 40 bytes and 32 for each
/// file.
struct SaveReport {
  Hash128 tensors;  ///< of tensor_list(): processes with the same tensors have the same
  std::uint64_t logical_bytes = 0, stored_bytes = 0;
  std::int64_t chunks = 0;
  std::vector<FileEntry> files;  ///< one per writer; 0 bytes where it has written none
};

/// From the coordinator to all, last: what was committed; or, before that, that it needs the
/// tensor lists of some ranks, as not all have the same.
struct SaveOutcome {
  std::vector<int> lists_wanted;
  SaveStats stats;  ///< of the whole checkpoint; without times
};

Bytes encode(const AttemptNotice& notice);
AttemptNotice decode_notice(std::span<const std::byte> bytes);

/// Of the writers' files, in the order of writers.
Bytes encode(const SaveReport& report);
SaveReport decode_report(std::span<const std::byte> bytes);

Bytes encode(const SaveOutcome& outcome);
SaveOutcome decode_outcome(std::span<const std::byte> bytes);

/// What rank 0 finds when it looks for the latest step, and the id of the attempt that it was.
/// Paths are names in the root, which is the reader's own.
Bytes encode(const std::optional<LatestStep>& latest, const std::string& id);
std::pair<std::optional<LatestStep>, std::string> decode_latest(std::span<const std::byte> bytes,
                                                                const std::filesystem::path& root);

/// A text that says which tensors a process saves and who writes what: a manifest without files.
std::string tensor_list(const Manifest& manifest);

}  // namespace shardwise::detail
