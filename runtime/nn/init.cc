#include "shardwise/runtime/nn/init.h"

#include <cmath>
#include <cstddef>
#include <numbers>
#include <span>
#include <vector>

#include "shardwise/shard/host/random.h"

namespace shardwise {
namespace {

Tensor from_doubles(Tracer& tracer, const TensorType& type, const std::vector<double>& values,
                    std::string_view label, MemoryKind kind) {
  std::vector<std::byte> bytes(values.size() * size_bytes(type.dtype));
  convert(DType::f64, std::as_bytes(std::span(values)).data(), type.dtype, bytes.data(),
          values.size());
  return tracer.tensor(type, bytes, label, kind);
}

}  // namespace

Tensor full(Tracer& tracer, const TensorType& type, double number, std::string_view label,
            MemoryKind kind) {
  const std::vector<double> values(as_size(num_elements(type.shape)), number);
  return from_doubles(tracer, type, values, label, kind);
}

Tensor normal(Tracer& tracer, const TensorType& type, double deviation, std::uint64_t seed,
              std::string_view label, MemoryKind kind) {
  std::vector<double> values(as_size(num_elements(type.shape)));
  const std::uint64_t stream = splitmix64(seed);
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Box and Muller's method, with a number in (0, 1] and one in [0, 1).
    const double u = static_cast<double>((splitmix64(stream + 2 * i) >> 11) + 1) * 0x1p-53;
    const double v = static_cast<double>(splitmix64(stream + 2 * i + 1) >> 11) * 0x1p-53;
    values[i] = deviation * std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
  }
  return from_doubles(tracer, type, values, label, kind);
}

}  // namespace shardwise
