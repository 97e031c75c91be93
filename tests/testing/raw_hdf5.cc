#include "testing/raw_hdf5.h"

#include <array>

namespace shardwise {
namespace {

using detail::H5Dataset;
using detail::H5File;
using detail::H5Space;
using detail::H5Type;

}  // namespace

void add_plugin_folder() {
  // First, as the search ends at a folder that is not there, and the default one is not.
  static const herr_t added = H5PLprepend(SHARDWISE_HDF5_PLUGINS);
  detail::check_hdf5(added, "add the plugin folder");
}

RawDataset read_raw(const std::filesystem::path& file, const std::string& dataset) {
  constexpr ErrorCode code = ErrorCode::corrupt;
  add_plugin_folder();
  const H5File opened(H5Fopen(file.c_str(), H5F_ACC_RDONLY, H5P_DEFAULT), file.string(), code);
  const H5Dataset found(H5Dopen2(opened.get(), dataset.c_str(), H5P_DEFAULT), dataset, code);
  const H5Space space(H5Dget_space(found.get()), dataset, code);
  std::array<hsize_t, kMaxRank> extents{};
  const int rank = H5Sget_simple_extent_dims(space.get(), extents.data(), nullptr);
  RawDataset result{H5Type(H5Dget_type(found.get()), dataset, code), {}, {}};
  for (int d = 0; d < rank; ++d) {
    result.shape.push_back(static_cast<std::int64_t>(extents[static_cast<std::size_t>(d)]));
  }
  result.data.resize(num_bytes(result.shape, H5Tget_size(result.type.get())));
  detail::check_hdf5(
      H5Dread(found.get(), result.type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, result.data.data()),
      dataset, code);
  return result;
}

void write_raw(const std::filesystem::path& file, DType dtype, const Shape& shape,
               const std::vector<std::byte>& data) {
  const H5File made(H5Fcreate(file.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), "create");
  const H5Type type = detail::hdf5_type(dtype);
  const H5Space space = detail::hdf5_space(shape);
  const H5Dataset dataset(H5Dcreate2(made.get(), "data", type.get(), space.get(), H5P_DEFAULT,
                                     H5P_DEFAULT, H5P_DEFAULT),
                          "create");
  detail::check_hdf5(
      H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, data.data()), "write");
}

}  // namespace shardwise
