#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/storage/detail/hdf5.h"

namespace shardwise {

/// A dataset as plain HDF5 sees it, with the zstd plugin of the build tree.
struct RawDataset {
  detail::H5Type type;
  Shape shape;
  std::vector<std::byte> data;  ///< row-major, in the dataset's own type
};

/// Lets HDF5 find the zstd plugin of the build tree. Under an Hdf5Lock.
void add_plugin_folder();

/// Reads through H5Dread; links and virtual datasets are followed. Throws corrupt where the library
/// refuses. Under an Hdf5Lock, which must outlive the result.
RawDataset read_raw(const std::filesystem::path& file, const std::string& dataset);

/// Writes through H5Dcreate and H5Dwrite, with the library's defaults. Under an Hdf5Lock.
void write_raw(const std::filesystem::path& file, DType dtype, const Shape& shape,
               const std::vector<std::byte>& data);

}  // namespace shardwise
