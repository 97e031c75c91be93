#pragma once

#include <filesystem>

#include "shardwise/convert/detail/model_source.h"

namespace shardwise::detail {

/// The datasets of an HDF5 file, by their paths without the first "/". The library reads the file,
/// which leads it to no other file. Throws corrupt, and unsupported if there are too many objects
/// or if no dataset can be read.
ModelSource open_hdf5_model(const std::filesystem::path& path, FileSystem& file_system);

}  // namespace shardwise::detail
