#include "shardwise/runtime/graph/op.h"

#include <fmt/format.h>

#include <array>
#include <ostream>

namespace shardwise {

namespace {

// In the order of Op.
constexpr std::array<std::string_view, kOps> kOpNames = {
    "input",
    "constant",
    "literal",
    "iota",
    "neg",
    "abs",
    "sign",
    "exp",
    "exp2",
    "expm1",
    "log",
    "log1p",
    "tanh",
    "logistic",
    "erf",
    "erf_inv",
    "sqrt",
    "rsqrt",
    "cbrt",
    "sin",
    "cos",
    "floor",
    "ceil",
    "round",
    "is_finite",
    "logical_not",
    "population_count",
    "convert",
    "bitcast",
    "identity",
    "stop_gradient",
    "optimization_barrier",
    "add",
    "sub",
    "mul",
    "div",
    "rem",
    "max",
    "min",
    "pow",
    "atan2",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
    "shift_left",
    "shift_right_logical",
    "shift_right_arithmetic",
    "select",
    "broadcast",
    "transpose",
    "reshape",
    "slice",
    "pad",
    "concatenate",
    "reverse",
    "reduce_sum",
    "reduce_max",
    "reduce_min",
    "reduce_prod",
    "argmax",
    "argmin",
    "cumsum",
    "cumprod",
    "cummax",
    "cummin",
    "cumlogsumexp",
    "dot_general",
    "convolution",
    "reduce_window_sum",
    "reduce_window_max",
    "select_and_scatter_add",
    "take",
    "scatter_add",
    "scatter",
    "take_along",
    "scatter_add_along",
    "dynamic_slice",
    "dynamic_update_slice",
    "argsort",
    "random_bits",
    "scan",
    "cond",
    "result",
    "enter_manual",
    "leave_manual",
    "manual_all_reduce",
};
static_assert(!kOpNames.back().empty());

}  // namespace

std::string_view name(Op op) { return kOpNames[static_cast<std::size_t>(op)]; }

std::string to_string(const TensorType& type) {
  return fmt::format("{}{}", name(type.dtype), to_string(type.shape));
}

std::ostream& operator<<(std::ostream& out, const TensorType& type) {
  return out << to_string(type);
}

}  // namespace shardwise
