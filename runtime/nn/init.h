#pragma once

#include <cstdint>
#include <string_view>

#include "shardwise/runtime/tracer.h"

namespace shardwise {

/// A tensor of equal numbers, of a floating or integer dtype: gains, biases, optimizer state.
Tensor full(Tracer& tracer, const TensorType& type, double number, std::string_view label,
            MemoryKind kind = MemoryKind::parameter);

/// Normally distributed around 0, of a floating dtype. Each element depends only on the seed and
/// its place, so every mesh begins with the same weights.
Tensor normal(Tracer& tracer, const TensorType& type, double deviation, std::uint64_t seed,
              std::string_view label, MemoryKind kind = MemoryKind::parameter);

}  // namespace shardwise
