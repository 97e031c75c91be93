#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// All names in a root, sorted. Folders with a step's name are checkpoints: in a bucket those
/// without a manifest are left out, of attempts and removed steps. Throws not_found.
std::vector<std::string> names_in_root(FileSystem& file_system, const std::filesystem::path& root);

}  // namespace shardwise::detail
