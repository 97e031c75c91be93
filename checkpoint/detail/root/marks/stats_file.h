#pragma once

#include <filesystem>
#include <string>

#include "shardwise/checkpoint/save.h"
#include "shardwise/storage/file.h"

// The statistics of a save, as a file next to its step: stats-step-00000100.json. (Not step-*,
// which people and their scripts take for steps.) Nobody reads it but people and their tools, so it
// is not synced, and may be removed.
namespace shardwise::detail {

/// One JSON object with a member for each of SaveStats, of this save of a step, and its speed.
std::string print_stats(const SaveStats& stats);

/// Writes the file of a committed save. Throws already_exists if somebody has a file of this name
/// that no save wrote, io.
void write_stats(FileSystem& file_system, const SaveStats& stats);

/// Removes those of steps that are gone, and no other file. Throws io.
void remove_stale_stats(FileSystem& file_system, const std::filesystem::path& root);

}  // namespace shardwise::detail
