#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>

#include "shardwise/shard/error.h"

namespace shardwise {

/// Converts an extent, index or count, which is never negative, to the size of a container.
constexpr std::size_t as_size(std::int64_t value) { return static_cast<std::size_t>(value); }

/// Most dimensions a tensor may have. A Box holds its values in place, so making one needs no
/// allocation; 16 is twice the limit of common frameworks.
inline constexpr std::size_t kMaxRank = 16;

/// One int64 per tensor dimension: a shape, an index or a stride. Holds its values in place.
///
/// Value type, thread-compatible.
///
///   Shape shape{8, 3};
///   shape.size();                     // 2
///   num_elements(shape);              // 24
class Dims {
 public:
  using value_type = std::int64_t;
  using iterator = std::int64_t*;
  using const_iterator = const std::int64_t*;

  // Values beyond size() are neither set nor copied: for a matrix they would be seven eighths of
  // all.
  Dims() {}
  Dims(const Dims& other) noexcept : size_(other.size_) {
    for (std::size_t dim = 0; dim < size_; ++dim) values_[dim] = other.values_[dim];
  }
  Dims& operator=(const Dims& other) {
    size_ = other.size_;
    for (std::size_t dim = 0; dim < size_; ++dim) values_[dim] = other.values_[dim];
    return *this;
  }

  /// Throws invalid_argument if there are more than kMaxRank values.
  Dims(std::initializer_list<std::int64_t> values)
      : Dims(std::span<const std::int64_t>(values.begin(), values.size())) {}
  explicit Dims(std::span<const std::int64_t> values);

  /// `rank` times the same value. Throws invalid_argument if rank is over kMaxRank.
  static Dims filled(std::size_t rank, std::int64_t value) {
    if (rank > kMaxRank) fail_rank(rank);
    Dims dims;
    dims.size_ = rank;
    for (std::int64_t& v : dims) v = value;
    return dims;
  }

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  std::int64_t& operator[](std::size_t dim) { return values_[dim]; }
  std::int64_t operator[](std::size_t dim) const { return values_[dim]; }

  std::int64_t* begin() { return values_.data(); }
  std::int64_t* end() { return values_.data() + size_; }
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + size_; }

  /// Throws invalid_argument beyond kMaxRank.
  void push_back(std::int64_t value) {
    if (size_ == kMaxRank) fail_rank(size_ + 1);
    values_[size_++] = value;
  }

  bool operator==(const Dims& other) const;

 private:
  [[noreturn]] static void fail_rank(std::size_t rank);

  // The size goes first, so that a tensor of few dims touches one cache line.
  std::size_t size_ = 0;
  std::array<std::int64_t, kMaxRank> values_;
};

using Shape = Dims;
using Index = Dims;

/// Product of the extents; 1 for a scalar. Throws invalid_argument for a negative extent or a
/// product over 2^63 - 1.
std::int64_t num_elements(const Shape& shape);

/// num_elements(shape) * element_bytes. Throws invalid_argument as above, also if the bytes
/// overflow.
std::size_t num_bytes(const Shape& shape, std::size_t element_bytes);

/// Shrinks the dims of a shape, the outermost first, until it has at most `most_bytes`; a non-empty
/// dim stays non-empty. For taking a sample of a tensor. Throws as num_bytes.
Shape cut_to_bytes(Shape shape, std::size_t element_bytes, std::size_t most_bytes);

/// Row-major strides in elements: the last dim has stride 1.
Dims row_major_strides(const Shape& shape);

/// "[8, 3]"; "[]" for a scalar.
std::string to_string(const Dims& dims);
std::ostream& operator<<(std::ostream& out, const Dims& dims);

template <class T>
requires requires(const T& x) { x.to_string(); }
std::string to_string(const T&) = delete;  // x.to_string()

/// Reads "8,3" or "[8, 3]"; "" and "[]" are a scalar. Throws invalid_argument.
Shape parse_shape(std::string_view text);

}  // namespace shardwise
