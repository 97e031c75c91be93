#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// Where the elements of an HDF5 dataset are in its file. Value type.
struct Hdf5Layout {
  enum class Kind {
    contiguous,  ///< all elements, row-major, at `offset`
    chunks,      ///< in whole chunks, each row-major, as they are
    library,     ///< all else: compressed, partly unwritten, or stored in another way
  };
  Kind kind = Kind::library;
  std::uint64_t offset = 0;                       ///< of `contiguous`, in bytes
  Shape chunk = {};                               ///< shape of a chunk, compressed or not
  std::vector<std::uint64_t> chunk_offsets = {};  ///< of `chunks`, in row-major order of the grid
};

/// A dataset of an HDF5 file. Value type.
struct Hdf5Dataset {
  std::string name;  ///< its path, without the first "/", or as it was asked for
  DType dtype = DType::f32;
  Shape shape = {};
  std::size_t bytes = 0;  ///< of all its elements
  bool swapped = false;   ///< the file's byte order is not the host's
};

/// Reads an HDF5 file of any writer, box by box. Every call of the library holds the process's one
/// HDF5 lock. Thread-safe.
class Hdf5Reader {
 public:
  /// All datasets, found from the root by links to objects of the file itself. Throws corrupt if
  /// the file is damaged or not HDF5, and unsupported if it has more links, names or nested groups
  /// than a file of tensors can have.
  explicit Hdf5Reader(const std::filesystem::path& path);

  /// One dataset. Throws not_found, listing those in the root, if no dataset has this name;
  /// corrupt; unsupported for elements that are no DType and for a rank over kMaxRank.
  Hdf5Reader(const std::filesystem::path& path, const std::string& name);
  ~Hdf5Reader();
  Hdf5Reader(Hdf5Reader&&) noexcept;
  Hdf5Reader& operator=(Hdf5Reader&&) noexcept;

  /// Sorted by name.
  const std::vector<Hdf5Dataset>& datasets() const;

  /// One "NAME: REASON" for each object that is no tensor or has its elements in another file.
  const std::vector<std::string>& left_out() const;

  /// For a reader of one dataset: which one, and where its elements are.
  const Hdf5Dataset& dataset() const { return datasets().front(); }
  const Hdf5Layout& layout() const;

  /// Reads a box of a dataset, by its number, through the library to row-major memory, native
  /// endian. Requires a box within the dataset. `what` is for messages. Throws corrupt.
  void read(std::size_t dataset, const Box& box, std::byte* out, const std::string& what) const;
  void read(const Box& box, std::byte* out) const;  ///< the one dataset

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The datasets in the file's root, sorted by name. Throws corrupt.
std::vector<std::string> hdf5_dataset_names(const std::filesystem::path& file);

}  // namespace shardwise::detail
