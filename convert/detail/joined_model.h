#pragma once

#include <filesystem>
#include <functional>

#include "shardwise/convert/detail/model_source.h"

namespace shardwise::detail {

/// The tensors of files that an index of HDF5 or npz names: exactly those that it lists. `open`
/// opens one file. Throws as ModelReader.
ModelSource open_joined(const std::filesystem::path& index, FileSystem& file_system,
                        const std::function<ModelSource(const std::filesystem::path&)>& open);

}  // namespace shardwise::detail
