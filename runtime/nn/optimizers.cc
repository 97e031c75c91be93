#include "shardwise/runtime/nn/optimizers.h"

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

AdamWState<Tensor> state_of(const std::vector<Tensor>& weights,
                            const std::vector<std::string>& names) {
  const auto zeros = [&](const TensorType& type, const std::string& label) {
    const std::vector<std::byte> bytes(num_bytes(type.shape, size_bytes(type.dtype)));
    return tensor_beside(weights.front(), type, bytes, label, MemoryKind::optimizer);
  };
  AdamWState<Tensor> state{{}, {}, zeros({weights.front().dtype(), {}}, "adamw/steps")};
  for (std::size_t i = 0; i < weights.size(); ++i) {
    state.first.push_back(zeros(weights[i].type(), "adamw/first/" + names[i]));
    state.second.push_back(zeros(weights[i].type(), "adamw/second/" + names[i]));
  }
  return state;
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

AdamWState<Tensor> adamw_state(const std::vector<Tensor>& weights) {
  std::vector<std::string> names;
  names.reserve(weights.size());
  for (const Tensor& weight : weights) names.push_back(weight.label());
  return state_of(weights, names);
}

AdamWState<Tensor> adamw_state(const std::map<std::string, Tensor>& weights) {
  std::vector<std::string> names;
  std::vector<Tensor> tensors;
  for (const auto& [name, weight] : weights) {
    names.push_back(name);
    tensors.push_back(weight);
  }
  return state_of(tensors, names);
}

}  // namespace shardwise
