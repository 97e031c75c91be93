#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "shardwise/checkpoint/detail/manifest.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// Throws invalid_argument where a JSON text of the caller's is none.
void check_json(const SaveOptions& options);

/// Writes what completes the directory of an attempt when its shard files are there: the index,
/// empty for none, which the manifest is told of, and the manifest, after all that a reader checks
/// of it. On the disk when it returns how many bytes they have. Throws corrupt, unsupported, io.
std::size_t complete(FileSystem& file_system, const std::filesystem::path& attempt,
                     Manifest& manifest, std::span<const std::byte> index);

}  // namespace shardwise::detail
