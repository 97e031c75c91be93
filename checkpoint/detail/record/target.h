#pragma once

#include <filesystem>

#include "shardwise/checkpoint/save.h"
#include "shardwise/storage/file.h"

// Checkpoints of any name, in any directory.
namespace shardwise::detail {

/// The path without a slash at its end, from the directory that the program is in now. Throws io.
std::filesystem::path absolute_target(const std::filesystem::path& target);

/// Says whether a valid checkpoint is at the absolute path. Throws as is_saved() does.
bool is_saved_target(FileSystem& files, const std::filesystem::path& target);

/// Makes the folders above the target, and removes leftovers of dead processes there; gives the
/// target. Throws already_exists if it is there and not to be replaced; io.
const std::filesystem::path& ready_target(FileSystem& files, const std::filesystem::path& target,
                                          Existing existing);

}  // namespace shardwise::detail
