#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/loader/source.h"
#include "shardwise/loader/sources/file_options.h"

namespace shardwise {

/// A field that a dataset has: its dim 0 counts the records, the rest is a record's shape.
struct Hdf5Field {
  std::string name;
  std::string dataset;  ///< its path in each file: "/train/images"
};

struct Hdf5Options {
  std::vector<Hdf5Field> fields = {};          ///< empty: all datasets in the first file's root
  std::size_t hold_bytes = kDefaultHoldBytes;  ///< of all files together
};

/// Opens datasets of HDF5 files, side by side as fields, the files one after the other.
///
/// Datasets that are contiguous, or in chunks without filters, are read at their offsets in the
/// file, of which only the boxes that are asked for. Compressed ones, and those in very many
/// chunks, go through the HDF5 library, one thread at a time: they stay in memory decoded, up to
/// hold_bytes; beyond that the last ones used, 64 MiB of them.
///
/// Throws invalid_argument where there is no file, no field, or lengths differ; not_found, also for
/// a dataset; io; corrupt where the library cannot read a file or data is beyond its end;
/// unsupported for strings, records and the like, for a scalar and data in external files.
///
///   const auto open = [] {
///     return open_hdf5({"a.h5", "b.h5"}, {.fields = {{"image", "/images"}, {"label",
///     "/labels"}}});
///   };
std::shared_ptr<const Source> open_hdf5(const std::vector<std::filesystem::path>& paths,
                                        const Hdf5Options& options = {});

}  // namespace shardwise
