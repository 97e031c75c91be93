#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/storage/file.h"

namespace shardwise {

/// The format of a file or folder, by its names and first bytes. Value type.
struct KnownFormat {
  /// "shardwise", "safetensors", "hdf5", "npz", "dcp", "orbax", "torch" (torch.save), "zarr",
  /// "npy", "pickle", "zip", "gguf", "gzip", "git-lfs", "json"; empty if it is unknown.
  std::string_view name = {};

  /// For messages, with an article: "a checkpoint of Orbax".
  std::string_view what = {};

  /// If the folder has no format itself: paths inside it that have this format each, such as the
  /// steps of a training run. Sorted by the numbers in their names, so the newest is the last one.
  std::vector<std::string> steps = {};
};

/// Recognises the format at a path. Follows links. Throws the file system's errors.
KnownFormat known_format(const std::filesystem::path& path, FileSystem& file_system);

/// As above, on the real file system; a path that cannot be read is unknown.
KnownFormat known_format(const std::filesystem::path& path);

/// Recognises a file by its first 512 bytes or more, or all of them. The name decides if the bytes
/// do not: "w.pt", "model.safetensors.index.json".
KnownFormat known_format_of_file(std::string_view first_bytes, std::string_view name);

/// "a checkpoint of Orbax", or "3 steps (10, 20, 30), each a checkpoint of Orbax".
std::string to_string(const KnownFormat& format);

}  // namespace shardwise
