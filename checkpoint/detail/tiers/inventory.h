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

// What of each step of the fast tier is in the directories of a host: FAST/process-N/step-S.
namespace shardwise::detail {

/// "process-00003"
std::string process_directory(int rank);

/// The rank of a name that process_directory gives; -1 of others.
int process_of_directory(std::string_view name);

/// A step as one save has written it.
struct SavedStep {
  std::int64_t step;
  std::string id;  ///< of the save: that of rank 0's attempt

  auto operator<=>(const SavedStep&) const = default;
};

/// Where this host has the files of a step, by their numbers in its manifest.
struct HeldFiles {
  std::int64_t generation = 0;  ///< the highest; of two saves of a step the newer one has a higher
  std::int64_t num_files = 0;   ///< of the whole checkpoint
  std::map<std::int64_t, std::filesystem::path> paths;
  std::filesystem::path manifest;
};

using Inventory = std::map<SavedStep, HeldFiles>;

/// What is in all directories of processes under the fast root that can be read. A file of another
/// size than its manifest says does not count. Throws io.
Inventory take_inventory(FileSystem& file_system, const std::filesystem::path& fast);

/// Which ranks have which files.
struct StepHolders {
  std::int64_t generation = 0, num_files = 0;
  std::vector<int> manifest;                    ///< ranks, ascending
  std::map<std::int64_t, std::vector<int>> of;  ///< by file

  bool is_whole() const { return static_cast<std::int64_t>(of.size()) == num_files; }
};

/// The inventories of all processes, put together; the same on all.
std::map<SavedStep, StepHolders> gather_inventories(const ProcessGroup& group,
                                                    const Inventory& own);

}  // namespace shardwise::detail
