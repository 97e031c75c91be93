#include "shardwise/runtime/graph/op.h"

#include <fmt/format.h>

#include <array>

namespace shardwise {

namespace {

// In the order of Op.
constexpr std::array<std::string_view, kOps> kOpNames = {
    "input",
    "constant",
    "iota",
    "neg",
    "abs",
    "sign",
    "exp",
    "log",
    "tanh",
    "logistic",
    "erf",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "floor",
    "ceil",
    "round",
    "is_finite",
    "logical_not",
    "convert",
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
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
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
    "argmax",
    "cumsum",
    "dot_general",
    "take",
    "scatter_add",
    "take_along",
    "scatter_add_along",
    "dynamic_slice",
    "dynamic_update_slice",
    "argsort",
    "random_bits",
    "enter_manual",
    "leave_manual",
    "manual_all_reduce",
};
static_assert(!kOpNames.back().empty());

}  // namespace

std::string_view name(Op op) { return kOpNames[static_cast<std::size_t>(op)]; }

double Scalar::as_double() const {
  double value = 0;
  write(DType::f64, reinterpret_cast<std::byte*>(&value));
  return value;
}

void Scalar::write(DType dtype, std::byte* element) const {
  convert(dtype_, reinterpret_cast<const std::byte*>(&bits_), dtype, element, 1);
}

std::optional<Scalar> Scalar::of(DType dtype) const {
  std::uint64_t element = 0;  // has room for an element of any dtype that is computed with
  std::byte* const bytes = reinterpret_cast<std::byte*>(&element);
  const auto widened = [&](auto value) {
    convert(dtype, bytes, Scalar(value).dtype(), reinterpret_cast<std::byte*>(&value), 1);
    return Scalar(value);
  };
  if (is_floating(dtype)) {
    if (dtype_ == DType::f64) return *this;
    write(dtype, bytes);
    return widened(0.0);
  }
  write(dtype, bytes);
  const bool is_signed = dtype >= DType::i64 && dtype <= DType::i8;
  const Scalar held = is_signed ? widened(std::int64_t{0}) : widened(std::uint64_t{0});
  // Between i64 and u64 equal bits are equal numbers if none is negative.
  if (dtype_ != DType::f64) {
    const bool negative = static_cast<std::int64_t>(bits_) < 0;
    if (held.bits_ != bits_ || (negative && held.dtype_ != dtype_)) return std::nullopt;
  } else if (held.as_double() != as_double() || as_double() == 0x1p64 ||
             (is_signed && as_double() == 0x1p63)) {
    return std::nullopt;  // the largest integer is rounded up to a power of two
  }
  return held;
}

std::string Scalar::to_string() const {
  switch (dtype_) {
    case DType::i64:
      return fmt::format("{}", static_cast<std::int64_t>(bits_));
    case DType::u64:
      return fmt::format("{}", bits_);
    default:
      return fmt::format("{}", std::bit_cast<double>(bits_));
  }
}

std::string to_string(const TensorType& type) {
  return fmt::format("{}{}", name(type.dtype), to_string(type.shape));
}

}  // namespace shardwise
