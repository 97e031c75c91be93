#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/storage/file.h"

// A run that goes back sets the steps after it aside: an empty file ".aside-step-00000060" marks
// one. A later generation has another name, so no mark: docs/design.md, "A run that goes back".
namespace shardwise::detail {

/// The names in a root, each list of steps ascending.
struct RunNames {
  std::vector<StepName> own;        ///< the run's, without a mark
  std::vector<StepName> aside;      ///< with one
  std::vector<StepName> gone;       ///< they have a mark, but are not there any more
  std::vector<std::string> others;  ///< no steps by their names, not hidden

  std::vector<StepName> all() const;
};

RunNames run_names(FileSystem& file_system, const std::filesystem::path& root);

/// Marks them one by one, on the disk: after a crash the latest step is as before, or the run's.
void set_aside(FileSystem& file_system, const std::filesystem::path& root,
               std::span<const StepName> names);

/// Removes the marks of steps that are not there any more. Returns the names.
RunNames remove_stale_marks(FileSystem& file_system, const std::filesystem::path& root);

}  // namespace shardwise::detail
