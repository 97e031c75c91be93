#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// Looks at the shard files of an attempt as a reader of the checkpoint would: each is there, has
/// the manifest's size, and its description is the manifest's; if there are no more than
/// kMostFilesReadAtOnce, the pieces of each are those that the manifest gives its writer. Requires
/// a manifest of version 2 without pieces. Throws corrupt, not_found, io.
void check_written_files(FileSystem& file_system, const std::filesystem::path& attempt,
                         Manifest manifest);

/// The same of some of its files, by their numbers in the manifest.
void check_written_files(FileSystem& file_system, const std::filesystem::path& attempt,
                         Manifest manifest, std::span<const std::size_t> numbers);

}  // namespace shardwise::detail
