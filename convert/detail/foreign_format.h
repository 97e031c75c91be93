#pragma once

#include <span>
#include <string>
#include <string_view>

namespace shardwise::detail {

/// What a file of no format that we read seems to be, by its first bytes: "a zip archive, such as
/// PyTorch's"; empty if unknown.
std::string_view foreign_file(std::string_view first_bytes);

/// What a folder without files that we read seems to be, by the names in it; empty if unknown.
std::string_view foreign_folder(std::span<const std::string> names);

}  // namespace shardwise::detail
