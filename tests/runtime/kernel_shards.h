#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "runtime/values.h"
#include "shardwise/runtime/kernels/detail/shard_view.h"
#include "testing/random_boxes.h"

namespace shardwise {

// For kernels' tests: tensors of whole numbers in 64 bits, whose expected results are worked out
// index by index, and device shards of any dtype, which hold them exactly.

/// Integer types wrap around, as kernels do; others round once.
inline void put_number(DType dtype, std::byte* data, std::size_t element, std::int64_t value) {
  const bool is_integer = dtype >= DType::i64 && dtype <= DType::u8;
  if (!is_integer) return put(dtype, data, element, value);
  std::memcpy(data + element * size_bytes(dtype), &value, size_bytes(dtype));
}

/// Row-major.
struct Numbers {
  std::int64_t& operator[](const Index& at) { return values[offset(at)]; }
  std::int64_t operator[](const Index& at) const { return values[offset(at)]; }

  std::size_t offset(const Index& at) const {
    std::int64_t element = 0;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) element = element * shape[dim] + at[dim];
    return as_size(element);
  }

  Shape shape;
  std::vector<std::int64_t> values;
};

inline Numbers zeros(const Shape& shape) {
  return {shape, std::vector<std::int64_t>(as_size(num_elements(shape)))};
}

/// From low to high.
inline Numbers random_numbers(const Shape& shape, std::int64_t low, std::int64_t high,
                              RandomShardings& random) {
  Numbers numbers = zeros(shape);
  for (std::int64_t& value : numbers.values) value = random.draw(low, high);
  return numbers;
}

/// A device's part of a tensor.
class TestShard {
 public:
  /// Elements without meaning.
  TestShard(DType dtype, const Box& box)
      : dtype_(dtype),
        box_(box),
        bytes_(num_bytes(box.shape(), size_bytes(dtype)), std::byte{0xa5}) {}

  /// Part of a whole tensor.
  TestShard(DType dtype, const Box& box, const Numbers& whole) : TestShard(dtype, box) {
    std::size_t element = 0;
    for_each_index(
        box, [&](const Index& at) { put_number(dtype, bytes_.data(), element++, whole[at]); });
  }

  operator ConstShardView() const { return {bytes_.data(), dtype_, box_}; }
  ShardView target() { return {bytes_.data(), dtype_, box_}; }
  const Box& box() const { return box_; }

  /// Requires a number that 64 bits hold.
  std::int64_t operator[](std::size_t element) const { return get(dtype_, bytes_.data(), element); }

  template <class T>
  std::span<T> as() {
    return {reinterpret_cast<T*>(bytes_.data()), bytes_.size() / sizeof(T)};
  }

  bool operator==(const TestShard&) const = default;

 private:
  DType dtype_;
  Box box_;
  std::vector<std::byte> bytes_;
};

inline void PrintTo(const TestShard& shard, std::ostream* out) {
  const ConstShardView view = shard;
  *out << name(view.dtype) << to_string(view.box) << " {";
  for (std::size_t i = 0; i < as_size(view.box.num_elements()) && i < 64; ++i) {
    *out << (i == 0 ? "" : ", ") << shard[i];
  }
  *out << "}";
}

/// Each dim from least to most.
inline Shape random_shape(std::size_t rank, std::int64_t least, std::int64_t most,
                          RandomShardings& random) {
  Shape shape;
  for (std::size_t dim = 0; dim < rank; ++dim) shape.push_back(random.draw(least, most));
  return shape;
}

/// A box inside the region: whole, or from anywhere to anywhere, in each dim.
inline Box random_part(const Box& region, RandomShardings& random) {
  Box part = random_box(region, random);
  for (std::size_t dim = 0; dim < region.rank(); ++dim) {
    if (random.draw(0, 1) == 0) part.set(dim, region.begin(dim), region.end(dim));
  }
  return part;
}

/// A box with those extents that begins anywhere.
inline Box placed(const Shape& extents, RandomShardings& random) {
  Box box;
  for (const std::int64_t extent : extents) {
    const std::int64_t begin = random.draw(0, 5);
    box.push_back(begin, begin + extent);
  }
  return box;
}

inline DType one_of(std::span<const DType> dtypes, RandomShardings& random) {
  return dtypes[as_size(random.draw(0, static_cast<std::int64_t>(dtypes.size()) - 1))];
}

/// To compute with.
inline DType random_dtype(RandomShardings& random) { return one_of(compute_dtypes(), random); }

/// To move.
inline DType any_dtype(RandomShardings& random) { return one_of(all_dtypes(), random); }

/// Numbers that the dtype holds, negative ones where it has them.
inline Numbers random_numbers_of(DType dtype, const Shape& shape, RandomShardings& random) {
  if (dtype == DType::boolean) return random_numbers(shape, 0, 1, random);
  const bool is_unsigned = dtype >= DType::u64 && dtype <= DType::u8;
  return random_numbers(shape, is_unsigned ? 0 : -9, 9, random);
}

}  // namespace shardwise
