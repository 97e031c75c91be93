#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/process/process_group.h"
#include "shardwise/storage/file.h"

// The files of each step of the fast tier in the directories of a host: FAST/process-N/step-S.
namespace shardwise::tiers_detail {

/// "process-00003"
std::string process_directory(int rank);

/// The rank of a name that process_directory gives; -1 of others.
int process_of_directory(std::string_view name);

/// All directories of processes in a fast root.
std::vector<std::filesystem::path> process_directories(FileSystem& file_system,
                                                       const std::filesystem::path& fast);

/// A step as one save has written it.
struct SavedStep {
  std::int64_t step;
  std::string id;        ///< of the save: that of rank 0's attempt
  std::string manifest;  ///< hash of its text, in hex

  auto operator<=>(const SavedStep&) const = default;
};

/// Where this host has the files of a step, by their numbers in its manifest.
struct HeldFiles {
  std::int64_t generation = 0;  ///< the highest; of two saves of a step the newer one has a higher
  std::int64_t num_files = 0;   ///< of the whole checkpoint
  bool is_set_aside = false;    ///< by a run that went back, in one of the directories at least
  std::map<std::int64_t, std::vector<std::filesystem::path>> paths;  ///< every copy of a file
  std::vector<std::filesystem::path> directories;                    ///< that have the manifest
  std::string manifest;                                              ///< its text
};

struct Inventory {
  std::map<SavedStep, HeldFiles> steps;
  std::vector<std::string> damaged;  ///< the problem of each manifest that was passed over
};

/// Lists all directories of processes under the fast roots that a process sees. A file of another
/// size than its manifest says does not count, nor does one without the files that it links; a
/// directory whose manifest is damaged is passed over. Throws io.
Inventory take_inventory(FileSystem& file_system, std::span<const std::filesystem::path> roots);

/// The message about a process's inventory. decode_inventory() may be given any bytes: it throws
/// corrupt or invalid_argument unless they are such a message, as it was sent; its result has an
/// empty path for each copy.
Bytes encode(const Inventory& inventory);
Inventory decode_inventory(std::span<const std::byte> message);

/// Which ranks have which files.
struct StepHolders {
  std::int64_t generation = 0, num_files = 0;
  bool is_set_aside = false;                    ///< on one of the hosts at least
  std::vector<int> manifest;                    ///< ranks, ascending
  std::map<std::int64_t, std::vector<int>> of;  ///< by file: the rank of each copy, ascending

  bool is_whole() const { return static_cast<std::int64_t>(of.size()) == num_files; }
};

/// The inventories of all processes, put together; the same on all.
struct AllInventories {
  std::map<SavedStep, StepHolders> steps;
  std::vector<std::string> damaged;  ///< each once
};

AllInventories gather_inventories(const ProcessGroup& group, const Inventory& own);

}  // namespace shardwise::tiers_detail
