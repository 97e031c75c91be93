#pragma once

#include <filesystem>

#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// As FileSystem::exchange(). If the system cannot, makes three renames over `aside`: nothing has
/// the name `b` for a moment; if the program ends just there, the old `b` is at `aside`.
void exchange_by_any_means(FileSystem& file_system, const std::filesystem::path& a,
                           const std::filesystem::path& b, const std::filesystem::path& aside);

}  // namespace shardwise::detail
