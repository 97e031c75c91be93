#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string_view>
#include <vector>

#include "shardwise/runtime/tracer.h"

namespace shardwise {

/// A tensor of small integers that differ: 0, 1, 2, .., 96, 0, ..
inline Tensor counting(Tracer& tracer, const Shape& shape, std::string_view label = "x",
                       MemoryKind kind = MemoryKind::array) {
  std::vector<float> values(as_size(num_elements(shape)));
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 97);
  return tracer.tensor({DType::f32, shape}, std::as_bytes(std::span(values)), label, kind);
}

/// Small integers, so that sums are exact in any order.
inline std::vector<float> small(const Shape& shape, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> values(as_size(num_elements(shape)));
  for (float& value : values) value = static_cast<float>(random() % 5) - 2;
  return values;
}

/// The whole value on the host.
inline std::vector<float> floats(const Tensor& tensor) {
  const std::vector<std::byte> bytes = tensor.array().to_host();
  std::vector<float> values(as_size(num_elements(tensor.shape())));
  convert(tensor.dtype(), bytes.data(), DType::f32, reinterpret_cast<std::byte*>(values.data()),
          as_size(num_elements(tensor.shape())));
  return values;
}

}  // namespace shardwise
