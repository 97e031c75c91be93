#include "shardwise/runtime/kernels/detail/elementwise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <numbers>

#include "shardwise/runtime/ops/detail/rules.h"

namespace shardwise::detail {
namespace {

using Rule = FactorRule (*)(const Node&, std::span<const TensorType>);

// ---- Types.

void need_supported(Op op, DType dtype) {
  if (ElementwiseKernel::supports(op, dtype)) return;
  std::string supported;
  for (const DType other : all_dtypes()) {
    if (!ElementwiseKernel::supports(op, other)) continue;
    supported += fmt::format("{}{}", supported.empty() ? "" : ", ", name(other));
  }
  refuse_dtype(dtype, "one of " + supported);
}

TensorType unary_type(const TypeCall& call) {
  need_operands(call, 1);
  const DType dtype = call.operands[0].dtype;
  need_supported(call.op, dtype);
  return {call.op == Op::is_finite ? DType::boolean : dtype, call.operands[0].shape};
}

TensorType same_type(const TypeCall& call) {
  need_operands(call, 1);
  return call.operands[0];
}

TensorType convert_type(const TypeCall& call) {
  need_operands(call, 1);
  return {call.wanted.dtype, call.operands[0].shape};
}

TensorType bitcast_type(const TypeCall& call) {
  need_operands(call, 1);
  const DType from = call.operands[0].dtype, to = call.wanted.dtype;
  if (size_bytes(from) != size_bytes(to)) {
    refuse(fmt::format("found {} for the bits of {}, needed a dtype of {} bytes", name(to),
                       name(from), size_bytes(from)));
  }
  return {to, call.operands[0].shape};
}

void need_same_shape(const TypeCall& call) {
  for (const TensorType& type : call.operands) {
    if (type.shape == call.operands[0].shape) continue;
    refuse(
        fmt::format("found shapes {} and {}, needed one shape, or extents that are equal or 1 from "
                    "the last dim on",
                    to_string(call.operands[0].shape), to_string(type.shape)));
  }
}

TensorType binary_type(const TypeCall& call) {
  need_operands(call, 2);
  need_same_dtype(call);
  need_same_shape(call);
  const DType dtype = call.operands[0].dtype;
  need_supported(call.op, dtype);
  return {dtype, call.operands[0].shape};
}

/// A floating base may have an integer exponent.
TensorType pow_type(const TypeCall& call) {
  need_operands(call, 2);
  need_same_shape(call);
  const DType base = call.operands[0].dtype;
  need_supported(call.op, base);
  if (!ElementwiseKernel::takes_exponent(base, call.operands[1].dtype)) need_same_dtype(call);
  return call.operands[0];
}

TensorType compare_type(const TypeCall& call) { return {DType::boolean, binary_type(call).shape}; }

TensorType select_type(const TypeCall& call) {
  need_operands(call, 3);
  need_same_shape(call);
  if (call.operands[0].dtype != DType::boolean) {
    refuse(fmt::format("found a condition of {}, needed bool", name(call.operands[0].dtype)));
  }
  if (call.operands[1].dtype != call.operands[2].dtype) {
    refuse(fmt::format("found operands of {} and {}, needed one dtype: convert one of them",
                       to_string(call.operands[1]), to_string(call.operands[2])));
  }
  return call.operands[1];
}

// ---- Factors: each dim separately, the same in all tensors.

FactorRule pointwise_rule(const Node& node, std::span<const TensorType> operands) {
  RuleBuilder rule(node, operands);
  for (std::size_t dim = 0; dim < node.type.shape.size(); ++dim) {
    const std::int32_t factor = rule.factor(node.type.shape[dim]);
    for (std::size_t i = 0; i < operands.size(); ++i) rule.in(i, dim, factor);
    rule.out(dim, factor);
  }
  return rule.take();
}

// ---- Gradients: by the rules of calculus. At a tie or another choice, as in JAX.

using Cotangent = NodeRef;

/// A gradient of one operand from (operand, result, cotangent).
template <NodeRef Derive(const NodeRef&, const NodeRef&, const Cotangent&)>
Gradients unary_gradient(const GradientCall& call) {
  return {Derive(call.operands[0], call.result, call.cotangent)};
}

NodeRef d_neg(const NodeRef&, const NodeRef&, const Cotangent& g) { return -g; }
NodeRef d_abs(const NodeRef& x, const NodeRef&, const Cotangent& g) { return g * sign(x); }
NodeRef d_exp(const NodeRef&, const NodeRef& y, const Cotangent& g) { return g * y; }
NodeRef d_log(const NodeRef& x, const NodeRef&, const Cotangent& g) { return g / x; }
NodeRef d_exp2(const NodeRef&, const NodeRef& y, const Cotangent& g) {
  return g * y * std::numbers::ln2;
}
NodeRef d_expm1(const NodeRef&, const NodeRef& y, const Cotangent& g) { return g * (y + 1.0); }
NodeRef d_log1p(const NodeRef& x, const NodeRef&, const Cotangent& g) { return g / (x + 1.0); }
NodeRef d_erf_inv(const NodeRef&, const NodeRef& y, const Cotangent& g) {
  return g * (exp(y * y) * (0.5 / std::numbers::inv_sqrtpi));
}
NodeRef d_cbrt(const NodeRef& x, const NodeRef& y, const Cotangent& g) { return g * (y / x) / 3.0; }
NodeRef d_tanh(const NodeRef&, const NodeRef& y, const Cotangent& g) { return g * (1.0 - y * y); }
NodeRef d_logistic(const NodeRef&, const NodeRef& y, const Cotangent& g) {
  return g * (y * (1.0 - y));
}
NodeRef d_erf(const NodeRef& x, const NodeRef&, const Cotangent& g) {
  return g * (exp(-(x * x)) * (2 * std::numbers::inv_sqrtpi));
}
NodeRef d_sqrt(const NodeRef&, const NodeRef& y, const Cotangent& g) { return g * 0.5 / y; }
NodeRef d_rsqrt(const NodeRef&, const NodeRef& y, const Cotangent& g) {
  return g * (y * y * y * -0.5);
}
NodeRef d_sin(const NodeRef& x, const NodeRef&, const Cotangent& g) { return g * cos(x); }
NodeRef d_cos(const NodeRef& x, const NodeRef&, const Cotangent& g) { return -(g * sin(x)); }
NodeRef d_identity(const NodeRef&, const NodeRef& y, const Cotangent& g) {
  const std::optional<PartitionSpec> mark = y.graph->node(y.id).mark;
  if (!mark) return g;
  const NodeRef cut = identity(static_cast<const NodeRef&>(g));
  mark_sharding(cut, *mark);
  return cut;
}
NodeRef d_convert(const NodeRef& x, const NodeRef&, const Cotangent& g) {
  return convert(g, x.type().dtype);
}

/// Gradients of both operands from (call), made only if wanted.
template <NodeRef Left(const GradientCall&), NodeRef Right(const GradientCall&)>
Gradients binary_gradient(const GradientCall& call) {
  Gradients gradients(2);
  if (call.wanted[0]) gradients[0] = Left(call);
  if (call.wanted[1]) gradients[1] = Right(call);
  return gradients;
}

NodeRef keep(const GradientCall& call) { return call.cotangent; }
NodeRef negate(const GradientCall& call) { return -call.cotangent; }
NodeRef times_right(const GradientCall& call) { return call.cotangent * call.operands[1]; }
NodeRef times_left(const GradientCall& call) { return call.cotangent * call.operands[0]; }
NodeRef over_right(const GradientCall& call) { return call.cotangent / call.operands[1]; }
NodeRef d_divisor(const GradientCall& call) {
  return -(call.cotangent * call.result / call.operands[1]);
}
NodeRef d_modulus(const GradientCall& call) {
  const NodeRef quotient = call.operands[0] / call.operands[1];
  return -(call.cotangent * (sign(quotient) * floor(abs(quotient))));
}
/// 1 where the result is operand I, a half where both are, else 0.
template <std::size_t I>
NodeRef d_extreme(const GradientCall& call) {
  const NodeRef &a = call.operands[I], &b = call.operands[1 - I], &y = call.result;
  const NodeRef one = full_like(y, 1), half = full_like(y, 0.5), none = full_like(y, 0);
  return call.cotangent * select(eq(a, y), select(eq(a, b), half, one), none);
}
NodeRef d_base(const GradientCall& call) {
  const NodeRef &a = call.operands[0], &b = call.operands[1];
  // x to the power of 0 does not change with x: no 0 times infinity.
  const NodeRef none = eq(b, full_like(b, 0));
  const NodeRef less = select(none, full_like(b, 1), b - 1);
  const NodeRef slope = convert(b, a.type().dtype) * pow(a, less);
  return call.cotangent * select(none, full_like(slope, 0), slope);
}
NodeRef d_exponent(const GradientCall& call) {
  const NodeRef& a = call.operands[0];
  const NodeRef zero = full_like(a, 0);
  // 0 to the power of b does not change with b: no log of 0.
  return call.cotangent * (log(select(eq(a, zero), full_like(a, 1), a)) * call.result);
}

NodeRef square_of_radius(const GradientCall& call) {
  const NodeRef &y = call.operands[0], &x = call.operands[1];
  return x * x + y * y;
}
NodeRef d_ordinate(const GradientCall& call) {
  return call.cotangent * (call.operands[1] / square_of_radius(call));
}
NodeRef d_abscissa(const GradientCall& call) {
  return call.cotangent * (-call.operands[0] / square_of_radius(call));
}

Gradients select_gradient(const GradientCall& call) {
  Gradients gradients(3);
  const NodeRef none = full_like(call.cotangent, 0);
  if (call.wanted[1]) gradients[1] = select(call.operands[0], call.cotangent, none);
  if (call.wanted[2]) gradients[2] = select(call.operands[0], none, call.cotangent);
  return gradients;
}

// ---- Kernels.

void elementwise_kernel(const KernelCall& call) {
  std::vector<ElementwiseInput> inputs;
  std::vector<ElementwiseKernel::Operand> operands;
  ElementwiseInstruction instruction{call.op, call.type.dtype, {}, 0};
  for (const ConstShardView& operand : call.operands) {
    instruction.operands.push_back(static_cast<std::int32_t>(inputs.size()));
    inputs.push_back({operand.dtype});
    operands.push_back({operand.data, row_major_strides(operand.box.shape())});
  }
  const auto result = static_cast<std::int32_t>(inputs.size());
  std::byte* const out[] = {call.out.data};
  const ElementwiseKernel kernel(std::move(inputs), {std::move(instruction)}, {result});
  kernel.run(call.out.box.shape(), operands, out);
}

void alias_kernel(const KernelCall& call) {
  if (call.out.data == call.operands[0].data) return;
  std::memcpy(call.out.data, call.operands[0].data,
              num_bytes(call.out.box.shape(), size_bytes(call.out.dtype)));
}

// ---- Rows.

OpRow unary(Op op, OpRow::Gradient& gradient, Linear linear = Linear::no) {
  return OpRow(op, unary_type, pointwise_rule, gradient, elementwise_kernel,
               {.is_elementwise = true, .linear = linear});
}

OpRow binary(Op op, OpRow::Gradient& gradient, Linear linear = Linear::no) {
  return OpRow(op, binary_type, pointwise_rule, gradient, elementwise_kernel,
               {.is_elementwise = true, .linear = linear});
}

OpRow compare(Op op) {
  return OpRow(op, compare_type, pointwise_rule, no_gradient, elementwise_kernel,
               {.is_elementwise = true});
}

OpRow alias(Op op, OpRow::Gradient& gradient) {
  return OpRow(op, same_type, pointwise_rule, gradient, alias_kernel,
               {.is_alias = true, .only_moves = true, .linear = Linear::in_one});
}

std::vector<OpRow> rows_of_one() {
  return {
      unary(Op::neg, unary_gradient<d_neg>, Linear::in_one),
      unary(Op::abs, unary_gradient<d_abs>),
      unary(Op::sign, no_gradient),
      unary(Op::exp, unary_gradient<d_exp>),
      unary(Op::exp2, unary_gradient<d_exp2>),
      unary(Op::expm1, unary_gradient<d_expm1>),
      unary(Op::log, unary_gradient<d_log>),
      unary(Op::log1p, unary_gradient<d_log1p>),
      unary(Op::tanh, unary_gradient<d_tanh>),
      unary(Op::logistic, unary_gradient<d_logistic>),
      unary(Op::erf, unary_gradient<d_erf>),
      unary(Op::erf_inv, unary_gradient<d_erf_inv>),
      unary(Op::sqrt, unary_gradient<d_sqrt>),
      unary(Op::rsqrt, unary_gradient<d_rsqrt>),
      unary(Op::cbrt, unary_gradient<d_cbrt>),
      unary(Op::sin, unary_gradient<d_sin>),
      unary(Op::cos, unary_gradient<d_cos>),
      unary(Op::floor, no_gradient),
      unary(Op::ceil, no_gradient),
      unary(Op::round, no_gradient),
      unary(Op::is_finite, no_gradient),
      unary(Op::logical_not, no_gradient),
      unary(Op::population_count, no_gradient),
      {Op::convert,
       convert_type,
       pointwise_rule,
       unary_gradient<d_convert>,
       elementwise_kernel,
       {.is_elementwise = true}},
      {Op::bitcast,
       bitcast_type,
       pointwise_rule,
       no_gradient,
       alias_kernel,
       {.is_alias = true, .only_moves = true}},
      alias(Op::identity, unary_gradient<d_identity>),
      alias(Op::stop_gradient, no_gradient),
      alias(Op::optimization_barrier, unary_gradient<d_identity>),
  };
}

std::vector<OpRow> rows_of_several() {
  return {
      binary(Op::add, binary_gradient<keep, keep>, Linear::in_all),
      binary(Op::sub, binary_gradient<keep, negate>, Linear::in_all),
      binary(Op::mul, binary_gradient<times_right, times_left>, Linear::in_one),
      binary(Op::div, binary_gradient<over_right, d_divisor>),
      binary(Op::rem, binary_gradient<keep, d_modulus>),
      binary(Op::max, binary_gradient<d_extreme<0>, d_extreme<1>>),
      binary(Op::min, binary_gradient<d_extreme<0>, d_extreme<1>>),
      {Op::pow,
       pow_type,
       pointwise_rule,
       binary_gradient<d_base, d_exponent>,
       elementwise_kernel,
       {.is_elementwise = true}},
      binary(Op::atan2, binary_gradient<d_ordinate, d_abscissa>),
      compare(Op::eq),
      compare(Op::ne),
      compare(Op::lt),
      compare(Op::le),
      compare(Op::gt),
      compare(Op::ge),
      binary(Op::logical_and, no_gradient),
      binary(Op::logical_or, no_gradient),
      binary(Op::logical_xor, no_gradient),
      binary(Op::shift_left, no_gradient),
      binary(Op::shift_right_logical, no_gradient),
      binary(Op::shift_right_arithmetic, no_gradient),
      {Op::select,
       select_type,
       pointwise_rule,
       select_gradient,
       elementwise_kernel,
       {.is_elementwise = true}},
  };
}

}  // namespace

std::vector<OpRow> elementwise_rows() {
  std::vector<OpRow> rows = rows_of_one();
  std::ranges::move(rows_of_several(), std::back_inserter(rows));
  return rows;
}

}  // namespace shardwise::detail
