#pragma once

#include <filesystem>
#include <string_view>

namespace shardwise::detail {

/// The last part of a path; of a URL, without the query.
std::filesystem::path file_name_of(const std::filesystem::path& path);

/// The format of a file or folder, as open_source() names it: by the ending of its name, else by
/// its first bytes; empty if both are unknown. Throws io.
std::string_view source_format(const std::filesystem::path& path);

}  // namespace shardwise::detail
