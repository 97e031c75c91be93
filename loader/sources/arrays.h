#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/loader/source.h"
#include "shardwise/loader/sources/file_options.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// Opens an array written by numpy.save (.npy, versions 1 to 3), of either byte order. Dim 0 counts
/// the records; the rest is a record's shape. The file is read in place.
///
/// Throws not_found; io; corrupt if the header is not as numpy writes it or the file is not exactly
/// as long as it says; unsupported for Fortran order, a scalar, a rank over kMaxRank, and types
/// that are no DType (strings, objects, records, times).
///
///   const auto images = open_npy("images.npy", "image");
std::shared_ptr<const Source> open_npy(const std::filesystem::path& path, std::string field_name,
                                       std::size_t hold_bytes = kDefaultHoldBytes);

/// Opens an idx file (the MNIST format: big-endian magic 0,0,type,rank, then rank 32-bit sizes,
/// then the elements), plain or gzip-compressed, as its first bytes tell. The first dim counts the
/// records; the rest is the record's shape. A plain file is read in place at record offsets (up to
/// `hold_bytes` of it stay in memory, file_options.h); a compressed file has no random access, so
/// it is unpacked into memory once.
///
/// Throws not_found; io; corrupt if the magic, a size, the length of the file or its compression is
/// wrong (the message names the found and the needed value); unsupported for an element type other
/// than u8, i8, i16, i32, f32 or f64 and for a rank over kMaxRank. A header that claims more than
/// the file can hold is refused before memory is allocated for it.
///
///   const auto images = open_idx("train-images-idx3-ubyte.gz", "image");
std::shared_ptr<const Source> open_idx(const std::filesystem::path& path, std::string field_name,
                                       std::size_t hold_bytes = kDefaultHoldBytes);

struct TokenOptions {
  DType dtype = DType::u16;      ///< u8, u16, u32 or i32; little-endian in the file
  std::int64_t window = 0;       ///< tokens in a record, 1 or more. No default
  std::int64_t stride = 0;       ///< tokens from one record's start to the next; 0: window
  std::size_t header_bytes = 0;  ///< before the first token
  std::string field = "tokens";
  std::size_t hold_bytes = kDefaultHoldBytes;
};

/// A file of token ids and nothing else, cut into windows: record i is the tokens [i * stride, i *
/// stride + window). A model takes the first window - 1 of them as its input and the last window -
/// 1 as its targets. If the stride is below the window, records overlap. The last tokens are left
/// out if they do not fill a window; a file with fewer tokens than a window has no record.
///
/// Throws invalid_argument for impossible options; not_found; io; corrupt if the file is not
/// header_bytes and whole tokens.
///
///   const auto tokens = open_tokens("train.bin", {.dtype = DType::u16, .window = 1025,
///                                                 .stride = 1024});
std::shared_ptr<const Source> open_tokens(const std::filesystem::path& path,
                                          const TokenOptions& options);

/// A field read from a dataset: its dim 0 counts the records, the rest is a record's shape.
struct Hdf5Field {
  std::string name;
  std::string dataset;  ///< its path in each file: "/train/images"
};

struct Hdf5Options {
  std::vector<Hdf5Field> fields = {};          ///< empty: all datasets in the first file's root
  std::size_t hold_bytes = kDefaultHoldBytes;  ///< of all files together
};

/// Opens datasets of HDF5 files: the datasets become fields side by side, the files follow one
/// another.
///
/// Datasets that are contiguous, or in chunks without filters, are read at their offsets in the
/// file: only the requested boxes. Compressed datasets, and those in very many chunks, are read
/// through the HDF5 library, one thread at a time. Up to hold_bytes of them stay in memory decoded;
/// of larger ones, only the 64 MiB used last.
///
/// Throws invalid_argument if there is no file or no field, or lengths differ; not_found, also for
/// a dataset; io; corrupt if the library cannot read a file or data is beyond its end; unsupported
/// for strings, records and the like, for a scalar and data in external files.
///
///   const auto open = [] {
///     return open_hdf5({"a.h5", "b.h5"},
///                      {.fields = {{"image", "/images"}, {"label", "/labels"}}});
///   };
std::shared_ptr<const Source> open_hdf5(const std::vector<std::filesystem::path>& paths,
                                        const Hdf5Options& options = {});

}  // namespace shardwise
