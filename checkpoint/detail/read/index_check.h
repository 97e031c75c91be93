#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/manifest.h"

namespace shardwise::detail {

/// Opens index.h5 with HDF5 and compares each tensor's dataset with the manifest: its type, its
/// extents, and every mapping to a piece. One line for each thing that is wrong. Requires that the
/// file's hash is right, as HDF5 is not made for damaged files.
std::vector<std::string> check_index(const std::filesystem::path& path, const Manifest& manifest);

}  // namespace shardwise::detail
