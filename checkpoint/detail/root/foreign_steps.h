#pragma once

#include <filesystem>
#include <string>

#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// Of a root without a step of ours: the newest of the checkpoints that another library, or another
/// layout of names, has left in it, and what to type; empty if there are none. "100, a checkpoint
/// of Orbax: ...". A run that took such a root for an empty one would begin again from nothing.
std::string foreign_steps(FileSystem& file_system, const std::filesystem::path& root);

}  // namespace shardwise::detail
