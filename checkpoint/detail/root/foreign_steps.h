#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// Checkpoints that another library, or another layout of names, has left in a root.
struct ForeignSteps {
  std::vector<std::string> names;
  std::string newest;  ///< of the names; "." if the root itself is one
  std::string is;      ///< names the newest one and the command to type: "a step of Orbax: ..."

  std::string text() const;  ///< "100 of 2 is a step of Orbax: ..."; empty without names
};

/// A run that did not see them would begin again from nothing.
ForeignSteps foreign_steps(FileSystem& file_system, const std::filesystem::path& root);

/// The names in the root whose number is above `step`: a run that did not see them would go on from
/// an older step of ours.
ForeignSteps foreign_steps(FileSystem& file_system, const std::filesystem::path& root,
                           std::span<const std::string> names, std::int64_t step);

}  // namespace shardwise::detail
