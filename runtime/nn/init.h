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

/// The state of adamw() before the first step: zeros on the host, of the dtype and shapes of the
/// weights, labelled as with_state() names them. Requires a weight.
AdamWState<Tensor> adamw_state(const std::vector<Tensor>& weights);
AdamWState<Tensor> adamw_state(const std::map<std::string, Tensor>& weights);

}  // namespace shardwise
