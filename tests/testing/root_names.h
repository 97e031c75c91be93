#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/storage/file.h"

namespace shardwise {

/// Names in a root, sorted, without the leases of managers that are not closed.
inline std::vector<std::string> root_names(const std::filesystem::path& root) {
  std::vector<std::string> names = posix_file_system()->list(root);
  std::erase_if(names, [](const std::string& name) { return name.starts_with(".writer."); });
  return names;
}

}  // namespace shardwise
