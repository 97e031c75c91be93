#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace shardwise::tools {

/// Names the format of a file or folder that is no checkpoint of ours, and the command that makes
/// one of it; empty if unknown. "safetensors: `shardwise import m.safetensors ROOT --step 0` makes
/// a checkpoint of it"
std::string foreign_format(const std::filesystem::path& path);

/// "dcp" or "orbax", which Python's packages read, if a folder is such a checkpoint; else empty.
std::string_view python_format(const std::filesystem::path& folder);

/// A folder right in this one that holds steps; empty if no folder does.
std::filesystem::path root_inside(const std::filesystem::path& folder);

/// Checkpoints right in a folder that have other names than steps, sorted.
std::vector<std::filesystem::path> named_checkpoints(const std::filesystem::path& folder);

/// True if a path has the name of a step's directory.
bool is_step(const std::filesystem::path& path);

/// True if a path is a checkpoint directory itself (holds a manifest).
bool is_checkpoint(const std::filesystem::path& path);

}  // namespace shardwise::tools
