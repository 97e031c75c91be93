#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/nn/optimizers.h"
#include "shardwise/runtime/tracer.h"

namespace shardwise {

/// A tensor of equal numbers, of a floating or integer dtype: gains, biases, optimizer state.
Tensor full(Tracer& tracer, const TensorType& type, double number, std::string_view label = "",
            MemoryKind kind = MemoryKind::parameter);

/// Normally distributed around 0, of a floating dtype. Each element depends only on the seed and
/// its place, so every mesh begins with the same weights.
Tensor normal(Tracer& tracer, const TensorType& type, double deviation, std::uint64_t seed,
              std::string_view label = "", MemoryKind kind = MemoryKind::parameter);

// What people write instead; the comments say what to write.
Tensor full(  // full(tracer, {DType::f32, {4, 3}}, 0, "b")
    Tracer&, const Shape&, double, std::string_view = "") = delete;
Tensor normal(  // normal(tracer, {DType::f32, {4, 3}}, 0.1, seed, "w")
    Tracer&, const Shape&, double, std::uint64_t, std::string_view = "") = delete;
void zeros(Tracer&, const auto&...) = delete;  // full(tracer, {DType::f32, {4, 3}}, 0, "b")
void ones(Tracer&, const auto&...) = delete;   // full(tracer, {DType::f32, {4, 3}}, 1, "b")
void randn(Tracer&, const auto&...) = delete;  // normal(tracer, {DType::f32, {4, 3}}, 1, seed, "w")
template <class Weights>
void adamw_state(Tracer&, const Weights&) = delete;  // adamw_state(weights)

/// The state of adamw() before the first step: zeros on the host, of the dtype and shapes of the
/// weights, labelled as with_state() names them. Requires a weight.
AdamWState<Tensor> adamw_state(const std::vector<Tensor>& weights);
AdamWState<Tensor> adamw_state(const std::map<std::string, Tensor>& weights);

}  // namespace shardwise
