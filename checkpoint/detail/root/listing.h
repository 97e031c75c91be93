#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// All names in a root, sorted. Folders with a step's name are checkpoints: in a bucket those
/// without a manifest are left out, of attempts and removed steps. Throws not_found.
std::vector<std::string> names_in_root(FileSystem& file_system, const std::filesystem::path& root);

/// The directory of a step in a bucket. A save or a removal leaves a generation's name to nobody
/// else, so "step-00000100" without a manifest stands for the newest generation of the step that
/// has one, if there is one.
std::filesystem::path newest_generation(FileSystem& file_system,
                                        const std::filesystem::path& directory);

}  // namespace shardwise::detail
