#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace shardwise::detail {

/// HDF5's value of an undefined address.
inline constexpr std::uint64_t kHdf5NoAddress = UINT64_MAX;

/// The checksum of HDF5's metadata: Jenkins' lookup3, "hashlittle", with initial value 0. Groups
/// order their links by it, too.
std::uint32_t hdf5_checksum(std::span<const std::byte> bytes);

/// Bytes for a known address of an HDF5 file, written one value after the
/// other. HDF5 is little-endian, and so is every machine this runs on. Thread-compatible.
class Hdf5Bytes {
 public:
  /// `address`: of the first byte.
  explicit Hdf5Bytes(std::uint64_t address) : address_(address) {}

  /// Address of the next byte.
  std::uint64_t here() const { return address_ + size_; }

  /// Fills up with zeros to the next multiple of 8, where an object may begin.
  std::uint64_t align();

  template <class T>
  requires std::is_integral_v<T>
  void put(T value) {
    static_assert(std::endian::native == std::endian::little);
    std::memcpy(add(sizeof value), &value, sizeof value);
  }
  void put(std::span<const std::byte> bytes) {
    if (!bytes.empty()) std::memcpy(add(bytes.size()), bytes.data(), bytes.size());
  }
  void put(std::string_view text) { put(std::as_bytes(std::span(text))); }

  /// The low `size` bytes of a value.
  void put_sized(std::uint64_t value, std::size_t size);

  /// The text and a zero byte. Requires that it holds none.
  void put_terminated(std::string_view text);
  void put_zeros(std::size_t count) { add(count); }

  /// The checksum of everything from `begin` to here.
  void put_checksum(std::uint64_t begin) { put(hdf5_checksum(from(begin))); }

  /// Overwrites the value at `address`. Requires that it was put there.
  template <class T>
  requires std::is_integral_v<T>
  void patch(std::uint64_t address, T value) {
    patch(address, std::as_bytes(std::span(&value, 1)));
  }
  void patch(std::uint64_t address, std::span<const std::byte> bytes);

  std::span<const std::byte> from(std::uint64_t begin) const {
    return bytes().subspan(begin - address_);
  }
  std::span<const std::byte> bytes() const { return std::span(memory_).first(size_); }

 private:
  // Room for that many more bytes, all zero.
  std::byte* add(std::size_t count) {
    if (memory_.size() - size_ < count) memory_.resize(2 * (memory_.size() + count));
    return memory_.data() + std::exchange(size_, size_ + count);
  }

  std::uint64_t address_;
  std::size_t size_ = 0;
  std::vector<std::byte> memory_;  // zeros after size_
};

}  // namespace shardwise::detail
