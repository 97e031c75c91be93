#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/runtime/process/process_group.h"
#include "shardwise/storage/file.h"
#include "shardwise/tiers/detail/inventory.h"
#include "shardwise/tiers/detail/mending.h"
#include "shardwise/tiers/tiers.h"

// Puts a step of the fast tier together from the files that the hosts have of it. Each process
// compares the hashes of all bytes that mean something in the files that it needs and in those that
// they link, its own ones, too. Instead of a bad chunk it takes the same bytes from elsewhere
// (mending.h); instead of a copy whose tables or HDF5's own bytes are bad, another copy.
namespace shardwise::tiers_detail {

/// A copy of a file that a process found to be bad.
struct BadCopy {
  std::int64_t file;  ///< its number in the manifest
  int holder;         ///< whose it is
  std::string problem;
  std::int64_t bad_chunks = 0;  ///< if nothing else is bad; 0: the copy is of no use

  bool operator==(const BadCopy&) const = default;
};

/// A process sends it to the others before each round of transfers.
struct AssemblyState {
  std::vector<BadCopy> bad;           ///< found since the last round
  std::vector<std::int64_t> missing;  ///< files that it still needs, ascending
  std::string refused = {};           ///< why the step does not fit its needs; else empty

  bool operator==(const AssemblyState&) const = default;
};

/// The messages. decode_assembly_state() may be given any bytes: it throws corrupt or
/// invalid_argument unless they are such a message, as it was sent, about files and processes that
/// there are.
Bytes encode(const AssemblyState& state);
AssemblyState decode_assembly_state(std::span<const std::byte> message, std::int64_t files,
                                    int processes);

/// The outcome for a step; the same `problem` on all processes.
struct AssembledStep {
  std::filesystem::path directory;  ///< of this process; it has the files that were needed
  std::int64_t files_taken = 0;
  std::uint64_t bytes_taken = 0;
  std::vector<std::string> damaged;  ///< the problem of each copy that was found bad
  std::vector<std::string> mended;   ///< sources that replaced bad chunks of this process's files
  std::string problem;               ///< why the step cannot be had; else empty

  /// Set on all processes if the step does not fit the needs of this one (the error that `needed`
  /// threw, not_found or invalid_argument) or those of another (cancelled).
  std::exception_ptr refused = {};
};

struct AssemblyPlaces {
  std::filesystem::path own;  ///< the directory of this process's steps
  MendingSources sources;
};

/// The step on all processes, which call it together: each then has the files with its `needed`
/// boxes in its directory `own`; all files, if there is no function. A committed directory gets
/// whole, checked files by renaming, and right bytes in place of bad chunks. Throws io, and
/// cancelled if another process fails.
AssembledStep assemble(const ProcessGroup& group, FileSystem& file_system,
                       const AssemblyPlaces& places, const Inventory& inventory,
                       const std::pair<const SavedStep, StepHolders>& step,
                       const NeededBoxes& needed);

}  // namespace shardwise::tiers_detail
