#pragma once

#include <ctime>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace shardwise::tools {

// Questions about a path, which may be one in a bucket: s3://bucket/prefix.

/// True if anything has this name, a broken link included. In a bucket: an object, or keys below.
bool is_there(const std::filesystem::path& path);

bool is_folder(const std::filesystem::path& path);

/// Sorted names in a folder; none if it cannot be listed.
std::vector<std::string> names_in(const std::filesystem::path& folder);

/// When a file was last written; absent if it is not there.
std::optional<std::time_t> time_of(const std::filesystem::path& file);

}  // namespace shardwise::tools
