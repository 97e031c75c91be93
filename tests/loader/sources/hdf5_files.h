#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/storage/detail/hdf5.h"

namespace shardwise {

/// A dataset of a test and the form in which it is written.
struct WrittenDataset {
  std::string name;
  DType dtype;
  Shape shape;
  Shape chunk = {};  ///< empty: contiguous
  int deflate = -1;  ///< 0 to 9, with shuffle; -1: no filter
  bool big_endian = false;
  std::int64_t rows = -1;  ///< how many are written; -1: all
};

/// Writes datasets with the library; `data` are the elements of each, native endian.
inline void write_hdf5(const std::filesystem::path& path,
                       const std::vector<WrittenDataset>& datasets,
                       const std::vector<std::vector<std::byte>>& data, hsize_t user_block = 0) {
  using namespace detail;
  const Hdf5Lock lock;
  const H5Properties how(H5Pcreate(H5P_FILE_CREATE), "create");
  check_hdf5(H5Pset_userblock(how.get(), user_block), "create");
  const H5File file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, how.get(), H5P_DEFAULT), "create");
  for (std::size_t i = 0; i < datasets.size(); ++i) {
    const WrittenDataset& wanted = datasets[i];
    const H5Type memory = hdf5_type(wanted.dtype);
    const H5Type stored(H5Tcopy(memory.get()), "type");
    if (wanted.big_endian) check_hdf5(H5Tset_order(stored.get(), H5T_ORDER_BE), "order");
    const H5Properties made(H5Pcreate(H5P_DATASET_CREATE), "list");
    if (!wanted.chunk.empty()) {
      std::vector<hsize_t> chunk(wanted.chunk.begin(), wanted.chunk.end());
      check_hdf5(H5Pset_chunk(made.get(), static_cast<int>(chunk.size()), chunk.data()), "chunk");
    }
    if (wanted.deflate >= 0) {
      check_hdf5(H5Pset_shuffle(made.get()), "shuffle");
      check_hdf5(H5Pset_deflate(made.get(), static_cast<unsigned>(wanted.deflate)), "deflate");
    }
    const H5Properties links(H5Pcreate(H5P_LINK_CREATE), "links");
    check_hdf5(H5Pset_create_intermediate_group(links.get(), 1), "links");
    const H5Space space = hdf5_space(wanted.shape);
    const H5Dataset dataset(H5Dcreate2(file.get(), wanted.name.c_str(), stored.get(), space.get(),
                                       links.get(), made.get(), H5P_DEFAULT),
                            wanted.name);
    Shape written = wanted.shape;
    if (wanted.rows >= 0) written[0] = wanted.rows;
    if (num_elements(written) == 0) continue;
    const H5Space part = hdf5_space(written);
    if (!written.empty()) {
      const std::vector<hsize_t> begin(written.size(), 0), count(written.begin(), written.end());
      check_hdf5(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, begin.data(), nullptr,
                                     count.data(), nullptr),
                 "select");
    }
    check_hdf5(
        H5Dwrite(dataset.get(), memory.get(), part.get(), space.get(), H5P_DEFAULT, data[i].data()),
        "write");
  }
}

}  // namespace shardwise
