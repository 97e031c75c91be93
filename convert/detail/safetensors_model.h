#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/convert/detail/string_map.h"
#include "shardwise/storage/detail/open_files.h"

namespace shardwise::detail {

/// Where a tensor's bytes begin.
struct FilePlace {
  std::size_t file;  ///< its number among the model's
  std::uint64_t offset;
};

/// What the headers of a model's files say.
struct SafetensorsModel {
  SafetensorsModel(std::vector<std::filesystem::path> of, std::shared_ptr<FileSystem> from);

  /// A file that is opened anew must have the size that it had first. Throws corrupt otherwise.
  std::unique_ptr<File> open(std::size_t file) const;

  const std::shared_ptr<FileSystem> file_system;
  const std::vector<std::filesystem::path> paths;   ///< of the files
  std::vector<std::optional<std::uint64_t>> bytes;  ///< of each file, once its header was read
  OpenFiles files;
  std::vector<TensorInfo> tensors;  ///< sorted by name
  std::vector<FilePlace> places;    ///< of each tensor
  StringMap metadata;               ///< SafetensorsReader::metadata()
};

/// Throws as SafetensorsReader.
std::unique_ptr<SafetensorsModel> open_safetensors(const std::filesystem::path& source,
                                                   const std::shared_ptr<FileSystem>& file_system);

}  // namespace shardwise::detail
