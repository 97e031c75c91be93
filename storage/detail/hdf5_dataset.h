#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"

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

/// A dataset in an HDF5 file, open for reading. Every call of the library holds the process's one
/// HDF5 lock. Thread-safe.
class Hdf5Dataset {
 public:
  /// Throws not_found if the file has no such dataset, listing those in its root; corrupt if it
  /// cannot be opened; unsupported for elements that are no DType (strings, records, references)
  /// and for a rank over kMaxRank.
  Hdf5Dataset(const std::filesystem::path& file, const std::string& name);
  ~Hdf5Dataset();
  Hdf5Dataset(Hdf5Dataset&&) noexcept;
  Hdf5Dataset& operator=(Hdf5Dataset&&) noexcept;

  DType dtype() const;
  const Shape& shape() const;
  std::size_t bytes() const;  ///< of all elements

  /// True if the file's byte order is not the host's.
  bool swapped() const;

  const Hdf5Layout& layout() const;

  /// Reads a box through the library to row-major memory, native endian. Requires a box within the
  /// dataset. Throws corrupt.
  void read(const Box& box, std::byte* out) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The datasets in the file's root, sorted by name. Throws corrupt.
std::vector<std::string> hdf5_dataset_names(const std::filesystem::path& file);

}  // namespace shardwise::detail
