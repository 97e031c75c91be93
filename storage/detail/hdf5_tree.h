#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// All datasets of an HDF5 file from any writer: found from its root by links to objects of the
/// file itself, and read box by box. Every call of the library holds the process's one HDF5 lock.
/// Thread-safe.
class Hdf5Tree {
 public:
  struct Dataset {
    std::string name;  ///< its path, without the first "/"
    DType dtype = DType::f32;
    Shape shape = {};
    std::size_t bytes = 0;  ///< of all its elements
  };

  /// Throws corrupt if the file is damaged or not HDF5, and unsupported if it has more links, names
  /// or nested groups than a file of tensors can have.
  explicit Hdf5Tree(const std::filesystem::path& path);
  ~Hdf5Tree();
  Hdf5Tree(const Hdf5Tree&) = delete;
  Hdf5Tree& operator=(const Hdf5Tree&) = delete;

  /// Sorted by name.
  const std::vector<Dataset>& datasets() const;

  /// One "NAME: REASON" for each object that is no tensor or has its elements in another file.
  const std::vector<std::string>& left_out() const;

  /// Reads a box of a dataset, by its number, to row-major memory. `what` is for messages. Throws
  /// corrupt.
  void read(std::size_t dataset, const Box& box, std::byte* out, const std::string& what) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardwise::detail
