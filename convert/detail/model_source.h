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

/// A file or folder of another format, opened: what a ModelReader shows.
struct ModelSource {
  std::string_view format;             ///< kSafetensors and so on
  std::unique_ptr<BoxReader> tensors;  ///< sorted by name; its callers check boxes
  StringMap metadata = {};             ///< ModelReader::metadata()
  std::vector<std::string> left_out = {};
};

/// Opens a file for reading. Follows links, as caches of downloads are made of them.
std::unique_ptr<File> open_linked(FileSystem& file_system, const std::filesystem::path& path);

/// Bytes of a file. Requires that they are few.
std::string text_at(File& file, std::uint64_t offset, std::uint64_t size);

/// Of formats, and what ends the names of their indexes: "model.npz.index.json".
inline constexpr std::string_view kSafetensors = "safetensors", kHdf5 = "hdf5", kNpz = "npz";
inline constexpr std::string_view kIndexEnding = ".index.json";

/// One of the above by what is there, or empty. Throws what the file system throws.
std::string_view recognised_format(FileSystem& file_system, const std::filesystem::path& path);

/// Opens what is recognised, and what is not as safetensors, which say what is wrong. Throws as
/// ModelReader.
ModelSource open_model(const std::filesystem::path& path,
                       const std::shared_ptr<FileSystem>& file_system);

}  // namespace shardwise::detail
