#pragma once

#include <hdf5.h>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "shardwise/shard/box.h"
#include "shardwise/shard/dims.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise::detail {

/// The code of errors if HDF5 cannot make sense of a file.
inline constexpr ErrorCode kBroken = ErrorCode::corrupt;

/// Holds the process's one lock around HDF5, for a whole sequence of calls, and keeps the library
/// from printing errors on this thread. Make it before any handle of the sequence, so that it
/// outlives them. Not recursive. Throws std::bad_alloc if there is no memory for such a sequence,
/// but not in a destructor, which closes alone.
class Hdf5Lock {
 public:
  enum class For { calls, closing };
  explicit Hdf5Lock(For sequence = For::calls);
  ~Hdf5Lock();
  Hdf5Lock(const Hdf5Lock&) = delete;
  Hdf5Lock& operator=(const Hdf5Lock&) = delete;

 private:
  MutexLock lock_;
  H5E_auto2_t printer_ = nullptr;
  void* printer_data_ = nullptr;
};

/// Throws `code`, or resource_exhausted if memory ran out, with `what` and the innermost entry of
/// the library's error stack.
[[noreturn]] void throw_hdf5(std::string_view what, ErrorCode code);

/// Throws as above if the status is negative.
inline void check_hdf5(herr_t status, std::string_view what, ErrorCode code = ErrorCode::io) {
  if (status < 0) throw_hdf5(what, code);
}

/// Owns an HDF5 identifier. Made, used and destroyed under one Hdf5Lock. Thread-compatible.
template <herr_t (*kClose)(hid_t)>
class H5Handle {
 public:
  /// Throws as throw_hdf5 does if `id` is negative: the call that returned it has failed.
  H5Handle(hid_t id, std::string_view what, ErrorCode code = ErrorCode::io) : id_(id) {
    if (id < 0) throw_hdf5(what, code);
  }
  H5Handle(H5Handle&& other) noexcept : id_(std::exchange(other.id_, H5I_INVALID_HID)) {}
  H5Handle& operator=(H5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~H5Handle() {
    if (id_ >= 0) kClose(id_);
  }

  hid_t get() const { return id_; }

  /// A file is closed by hand: closing writes, and the destructor would hide an error.
  void close(std::string_view what, ErrorCode code = ErrorCode::io) {
    check_hdf5(kClose(std::exchange(id_, H5I_INVALID_HID)), what, code);
  }

 private:
  hid_t id_;
};

using H5File = H5Handle<H5Fclose>;
using H5Group = H5Handle<H5Gclose>;
using H5Dataset = H5Handle<H5Dclose>;
using H5Space = H5Handle<H5Sclose>;
using H5Type = H5Handle<H5Tclose>;
using H5Attribute = H5Handle<H5Aclose>;
using H5Properties = H5Handle<H5Pclose>;

/// The little-endian HDF5 type, as h5py spells it; docs/checkpoint_format.md lists them under
/// "Shard files". Under an Hdf5Lock.
H5Type hdf5_type(DType dtype);

/// Describes a file's elements in terms of our dtypes.
struct Hdf5Element {
  DType dtype;
  bool swapped;  ///< their byte order is not the host's
};

/// Absent if they are no DType: strings, records, references and the like. Under an Hdf5Lock.
std::optional<Hdf5Element> hdf5_element(const H5Type& type);

/// The facts that a dataset's header states.
struct Hdf5Description {
  std::optional<Hdf5Element> element = {};  ///< absent: they are no numbers
  Shape shape = {};
  std::size_t bytes = 0;        ///< size of all elements
  std::size_t chunk_bytes = 0;  ///< decoded size of a compressed chunk; 0: not compressed
  std::string why_not = {};     ///< reason if it cannot be read here; else empty
};

/// Throws corrupt. Under an Hdf5Lock.
Hdf5Description describe_hdf5(hid_t dataset, const std::string& what);

/// Opens a file for reading. Each of its datasets keeps `cache_bytes` of decoded chunks. Throws
/// corrupt. Under an Hdf5Lock.
H5File open_hdf5_file(const std::filesystem::path& path, std::size_t cache_bytes);

/// The smallest cache: a chunk that is not kept is decoded again for each part that is read.
inline constexpr std::size_t kLeastHdf5CacheBytes = std::size_t{1} << 20;

/// Reads a box through the library to row-major memory, native endian. Requires a box within the
/// dataset, which is not empty. Throws corrupt. Under an Hdf5Lock.
void read_hdf5_box(const H5Dataset& dataset, DType dtype, const Box& box, std::byte* out,
                   std::string_view what);

/// A simple dataspace with these extents; the scalar dataspace for rank 0. Under an Hdf5Lock.
H5Space hdf5_space(const Shape& shape);

/// A property list of the class that does not record object times, for H5P_DATASET_CREATE and
/// H5P_GROUP_CREATE. Under an Hdf5Lock.
H5Properties hdf5_timeless(hid_t property_class);

}  // namespace shardwise::detail
