#pragma once

#include <filesystem>
#include <string>

#include "shardwise/shard/mesh.h"

namespace shardwise::tools {

/// Mesh::parse, with the device order from a list of its own ("3,1,0,2") where that is not empty.
Mesh parse_mesh(const std::string& mesh, const std::string& devices);

/// The checkpoint directory that a path means: itself where it holds a manifest, else the newest
/// valid step below it; steps that had to be passed over are named on stderr.
std::filesystem::path resolve_checkpoint(const std::string& path);

/// Whether a path is a checkpoint directory itself (holds a manifest).
bool is_checkpoint(const std::filesystem::path& path);

/// A root to look into. Throws not_found where it is not a directory: nothing is created.
std::filesystem::path existing_root(const std::string& path);

/// The text itself, or where it begins with "@" the content of the file named after it. Throws
/// not_found, io.
std::string text_or_file(const std::string& argument);

}  // namespace shardwise::tools
