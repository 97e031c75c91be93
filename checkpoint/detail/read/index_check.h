#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// The bytes that the writer makes of the manifest; none if no writer makes such a manifest.
std::vector<std::byte> index_of(const Manifest& manifest);

/// Compares index.h5 with the bytes that the writer makes of the manifest; returns the problem, in
/// one line, or an empty text. HDF5 never sees the file, which may be anybody's: it is not made for
/// hostile ones, and follows links. `path` is for the message. Throws io, and corrupt if the file
/// ends early.
std::string check_index(File& file, const std::string& path, const Manifest& manifest);

}  // namespace shardwise::detail
