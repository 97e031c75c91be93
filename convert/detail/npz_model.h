#pragma once

#include <filesystem>
#include <memory>

#include "shardwise/convert/detail/model_source.h"

namespace shardwise::detail {

/// The arrays of a .npz file, by the names of the members without ".npy". Each member's checksum is
/// compared before its first elements are read. Throws as ModelReader.
ModelSource open_npz(const std::filesystem::path& path,
                     const std::shared_ptr<FileSystem>& file_system);

}  // namespace shardwise::detail
