#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/convert/detail/string_map.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// An opened file or folder of another format, as a ModelReader shows it.
struct ModelSource {
  std::string_view format;             ///< kSafetensors and so on
  std::unique_ptr<BoxReader> tensors;  ///< sorted by name; its callers check boxes
  StringMap metadata = {};             ///< ModelReader::metadata()
  std::vector<std::string> left_out = {};
};

/// Opens a file for reading. Follows links, since download caches consist of them.
std::unique_ptr<File> open_linked(FileSystem& file_system, const std::filesystem::path& path);

/// Reads a few bytes of a file.
std::string text_at(File& file, std::uint64_t offset, std::uint64_t size);

/// The names of formats, and the ending of their indexes: "model.npz.index.json".
inline constexpr std::string_view kSafetensors = "safetensors", kHdf5 = "hdf5", kNpz = "npz";
inline constexpr std::string_view kIndexEnding = ".index.json";

/// One of the above, by the files at the path, or empty. Throws the file system's errors.
std::string_view recognised_format(FileSystem& file_system, const std::filesystem::path& path);

/// Opens a path in its format. Unknown formats are opened as safetensors, whose reader reports what
/// is wrong. Throws as ModelReader.
ModelSource open_model(const std::filesystem::path& path,
                       const std::shared_ptr<FileSystem>& file_system);

}  // namespace shardwise::detail
