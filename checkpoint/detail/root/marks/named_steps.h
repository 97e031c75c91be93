#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/steps.h"
#include "shardwise/storage/file.h"

// Names of steps: a file ".named-<name>" in the root, which holds the step's number in decimal.
// docs/checkpoint_format.md, heading "Directory layout".
namespace shardwise::detail {

/// Gives a step a name, on the disk when it returns. A name that another step has moves. Throws
/// invalid_argument for a text that can be no name, io.
void name_step(FileSystem& files, const std::filesystem::path& root, const NamedStep& named);

/// Takes a name away; whether it was there. Throws io.
bool remove_name(FileSystem& files, const std::filesystem::path& root, std::string_view name);

/// Sorted by name. Throws corrupt for a file that holds no number, io.
std::vector<NamedStep> named_steps(FileSystem& files, const std::filesystem::path& root);

}  // namespace shardwise::detail
