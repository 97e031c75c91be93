#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/hdf5/hdf5_bytes.h"
#include "shardwise/storage/detail/hdf5.h"

namespace shardwise::detail {

/// Room for HDF5 before the data of a shard file: its superblock, and as much other metadata as
/// fits; the rest comes after the data. One page is enough for that, and keeps the data aligned.
inline constexpr std::uint64_t kFrontBytes = 4096;

/// Lets HDF5 describe data that has already been written to a file: it makes the library's own
/// bytes in memory, around a hole where the data is.
///
/// The library runs over a virtual file driver (H5FDregister, its public interface). Raw
/// allocations answer with the address given to next_address(), raw writes are dropped. No callback
/// ever fails towards the library, which would leave a half-open file in it: the first failure is
/// kept, and thrown by check() and finish().
///
/// Thread-compatible; create_file() to finish() under an Hdf5Lock.
///
///   AddressDriver driver(kFrontBytes, data_end);
///   H5File file = driver.create_file();
///   driver.next_address(address);
///   H5Dwrite_chunk(...);                  // writes nothing, but the index now says `address`
///   driver.check();
///   driver.finish(std::move(file));
class AddressDriver {
 public:
  /// [data_begin, data_end) is the hole; both 0 for a file without raw data.
  AddressDriver(std::uint64_t data_begin, std::uint64_t data_end)
      : data_begin_(data_begin), data_end_(data_end), front_(data_begin) {}
  AddressDriver(const AddressDriver&) = delete;
  AddressDriver& operator=(const AddressDriver&) = delete;

  /// An empty file in the 1.10 format, whose object times are off.
  H5File create_file();

  /// The address of the library's next raw allocation. Requires that the last one was used up.
  void next_address(std::uint64_t address) { next_ = address; }

  /// Throws if a callback has failed, or the address was not taken.
  void check() const;

  /// Closes the file. Then front() and tail() are what belongs at 0 and at data_end, and end() is
  /// the file's length.
  void finish(H5File file);

  /// Appends objects made without the library, which begin at end(), and makes one of them the root
  /// group. Requires that the file is finished.
  void append(const Hdf5Bytes& objects, std::uint64_t root);

  std::span<const std::byte> front() const { return front_; }
  std::span<const std::byte> tail() const { return tail_; }
  std::uint64_t end() const { return data_end_ + tail_.size(); }

 private:
  friend struct AddressCallbacks;

  std::uint64_t allocate(H5FD_mem_t type, std::uint64_t size);
  void write(std::uint64_t address, std::span<const std::byte> bytes);
  void read(std::uint64_t address, std::span<std::byte> bytes) const;
  std::byte* find(std::uint64_t address, std::size_t size);
  void fail(const char* what);

  std::uint64_t data_begin_, data_end_;
  std::vector<std::byte> front_, tail_;
  std::uint64_t end_ = 0;  // of everything allocated
  std::uint64_t next_ = HADDR_UNDEF;
  std::exception_ptr failure_;
};

}  // namespace shardwise::detail
