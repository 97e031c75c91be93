#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/convert/detail/string_map.h"
#include "shardwise/convert/detail/weight_files.h"

namespace shardwise::detail {

/// Where a tensor's bytes begin.
struct FilePlace {
  std::size_t file;  ///< its number in WeightFiles
  std::uint64_t offset;
};

/// What the headers of a model's files say.
struct SafetensorsModel {
  explicit SafetensorsModel(std::shared_ptr<FileSystem> file_system)
      : files(std::move(file_system)) {}

  WeightFiles files;
  std::vector<TensorInfo> tensors;  ///< sorted by name
  std::vector<FilePlace> places;    ///< of each tensor
  StringMap metadata;               ///< SafetensorsReader::metadata()
};

/// Throws as SafetensorsReader.
std::unique_ptr<SafetensorsModel> open_safetensors(const std::filesystem::path& source,
                                                   const std::shared_ptr<FileSystem>& file_system);

}  // namespace shardwise::detail
