#pragma once

#include <cstddef>
#include <span>

#include "shardwise/runtime/kernels/detail/elementwise_plan.h"

namespace shardwise::detail {

/// ElementwiseKernel::run for counted operands and a shape that is not empty.
void run_elementwise(const ElementwiseProgram& program, const Shape& shape,
                     std::span<const ElementwiseKernel::Operand> inputs,
                     std::span<std::byte* const> outputs);

}  // namespace shardwise::detail
