#pragma once

#include <filesystem>
#include <memory>

#include "shardwise/convert/detail/model_source.h"
#include "shardwise/storage/file.h"

namespace shardwise::detail {

/// The tensors of a safetensors file, of an index that maps tensors to files, or of a folder with
/// one of the two. Throws as ModelReader.
ModelSource open_safetensors(const std::filesystem::path& source,
                             const std::shared_ptr<FileSystem>& file_system);

}  // namespace shardwise::detail
