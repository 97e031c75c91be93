#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "shardwise/runtime/sharded_array.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise {

inline constexpr Reduction kReductions[] = {Reduction::sum, Reduction::max, Reduction::min};

/// On all devices together.
inline std::size_t in_use(const Devices& devices) {
  std::size_t bytes = 0;
  for (const DeviceId id : devices.addressable()) bytes += devices.at(id).memory().in_use_bytes;
  return bytes;
}

/// Dtypes that are not computed with get small numbers as the bits of a byte, or a complex number
/// with twice as much in its imaginary part. get() gives -1 for any other complex number.
inline void put(DType dtype, std::byte* data, std::size_t element, std::int64_t value) {
  if (!is_computed(dtype)) {
    const DType part = dtype == DType::c128  ? DType::f64
                       : dtype == DType::c64 ? DType::f32
                                             : DType::i8;
    const std::size_t parts = size_bytes(dtype) / size_bytes(part);
    put(part, data, parts * element, value);
    if (parts == 2) put(part, data, parts * element + 1, 2 * value);
    return;
  }
  convert(DType::i64, reinterpret_cast<const std::byte*>(&value), dtype,
          data + element * size_bytes(dtype), 1);
}

inline std::int64_t get(DType dtype, const std::byte* data, std::size_t element) {
  if (dtype == DType::c64 || dtype == DType::c128) {
    const DType part = dtype == DType::c128 ? DType::f64 : DType::f32;
    const std::int64_t real = get(part, data, 2 * element);
    return get(part, data, 2 * element + 1) == 2 * real ? real : -1;
  }
  if (!is_computed(dtype)) return get(DType::i8, data, element);
  std::int64_t value;
  convert(dtype, data + element * size_bytes(dtype), DType::i64,
          reinterpret_cast<std::byte*>(&value), 1);
  return value;
}

inline std::vector<std::byte> random_bytes(std::size_t count, std::mt19937& random) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// Normally distributed numbers, where sums depend on the order; converted to `dtype`.
inline std::vector<std::byte> random_floats(DType dtype, std::size_t count, std::mt19937& random) {
  std::normal_distribution<double> normal(0, 10);
  std::vector<double> wide(count);
  for (double& value : wide) value = normal(random);
  std::vector<std::byte> bytes(count * size_bytes(dtype));
  convert(DType::f64, reinterpret_cast<const std::byte*>(wide.data()), dtype, bytes.data(), count);
  return bytes;
}

/// The bytes that an array holds at one mesh position.
inline std::vector<std::byte> shard_bytes(const ShardedArray& array, std::int64_t position) {
  const auto buffer = array.buffer(position);
  return {buffer->data(), buffer->data() + buffer->size_bytes()};
}

inline std::vector<std::vector<std::byte>> all_shard_bytes(const ShardedArray& array) {
  std::vector<std::vector<std::byte>> all;
  for (std::int64_t p = 0; p < array.sharding().mesh().size(); ++p) {
    all.push_back(shard_bytes(array, p));
  }
  return all;
}

}  // namespace shardwise
