#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/detail/hdf5/hdf5_bytes.h"
#include "shardwise/shard/box.h"
#include "shardwise/storage/detail/hdf5.h"

// Datasets without the HDF5 library, which takes 40 us for each, and 200 for a virtual one: their
// object headers (version 2), as section IV of the HDF5 File Format Specification 3.0 says.
namespace shardwise::detail {

/// The bytes that state a type in an object header. Under an Hdf5Lock.
std::vector<std::byte> hdf5_type_message(const H5Type& type);

/// The same for each element type that is stored. Made under an Hdf5Lock. Immutable.
class Hdf5Types {
 public:
  Hdf5Types();

  std::span<const std::byte> operator[](DType dtype) const {
    return messages_[static_cast<std::size_t>(dtype)];
  }

 private:
  std::vector<std::vector<std::byte>> messages_;
};

/// The address of an object's header in its file. Under an Hdf5Lock.
std::uint64_t hdf5_address(const H5Dataset& dataset);

/// Part of a virtual dataset: the box of it that is all of another file's dataset; or the same box
/// of that one. The file "." is its own.
struct Hdf5Mapping {
  Box box;
  std::string_view file, dataset;
  bool is_same_box = false;
};

/// A text that describes a dataset; of at most kMaxHdf5Text bytes, so that its message fits.
struct Hdf5Attribute {
  std::string_view name, text;
};
inline constexpr std::size_t kMaxHdf5Text = 32768;

/// Appends datasets; each function gives the address of its object header. Equal calls give equal
/// bytes. Thread-compatible.
class Hdf5Datasets {
 public:
  /// `out` must outlive it, and nothing but groups may be put there until it is gone.
  explicit Hdf5Datasets(Hdf5Bytes& out) : out_(out) {}

  /// A dataset whose `bytes` follow one another from `address` on; an empty one, as many as
  /// there are, with kHdf5NoAddress and 0.
  std::uint64_t add_contiguous(std::span<const std::byte> type, const Shape& shape,
                               std::uint64_t address, std::uint64_t bytes);

  /// As above, without elements, with attributes and the value that would fill it.
  std::uint64_t add_empty(std::span<const std::byte> type, const Shape& shape,
                          std::span<const std::byte> fill,
                          std::span<const Hdf5Attribute> attributes);

  /// A dataset of rank 1 or more that is made of others. `fill` is the value of elements whose
  /// source is missing.
  std::uint64_t add_virtual(std::span<const std::byte> type, const Shape& shape,
                            std::span<const std::byte> fill, std::span<const Hdf5Mapping> mappings,
                            std::span<const Hdf5Attribute> attributes);

 private:
  struct HeapObject {
    std::uint64_t collection;
    std::uint32_t index;
  };

  HeapObject add_mappings(std::span<const Hdf5Mapping> mappings);
  HeapObject add_to_heap(std::span<const std::byte> object);

  Hdf5Bytes& out_;

  // The global heap collection with room: its address, where the next object goes, and its end.
  std::uint64_t collection_ = 0, next_ = 0, end_ = 0;
  std::uint16_t objects_ = 0;
};

}  // namespace shardwise::detail
