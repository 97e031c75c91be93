#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/save.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// Throws invalid_argument if a JSON text of the caller's is not JSON.
void check_json(const PublishOptions& options);

/// The text of a manifest. It was parsed as a reader parses it, and gave the same tensors and
/// files. Throws corrupt, unsupported.
std::string checked_manifest(const Manifest& manifest);

/// Completes the directory of an attempt when its shard files are there. The manifest is on the
/// disk when it returns how many bytes it has. Throws io.
std::size_t write_manifest(FileSystem& file_system, const std::filesystem::path& attempt,
                           std::string_view text);

/// The same, and writes the index, if it is not empty, while the manifest, which is told of it, is
/// checked. Returns the bytes of both. Throws corrupt, unsupported, io.
std::size_t complete(FileSystem& file_system, const std::filesystem::path& attempt,
                     Manifest& manifest, std::span<const std::byte> index);

}  // namespace shardwise::detail
