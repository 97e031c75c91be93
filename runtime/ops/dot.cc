#include <fmt/format.h>

#include <map>

#include "shardwise/runtime/kernels/detail/einsum.h"
#include "shardwise/runtime/ops/detail/rules.h"

namespace shardwise::detail {
namespace {

/// The extent of each letter.
std::map<char, std::int64_t> extents_of(const Equation& equation,
                                        std::span<const TensorType> operands) {
  std::map<char, std::int64_t> extents;
  const std::string* const letters[] = {&equation.lhs, &equation.rhs};
  for (std::size_t i = 0; i < 2; ++i) {
    const Shape& shape = operands[i].shape;
    if (letters[i]->size() != shape.size()) {
      refuse(fmt::format("found an operand of shape {} for \"{}\", needed {} dims",
                         to_string(shape), *letters[i], letters[i]->size()));
    }
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      const auto [at, is_new] = extents.emplace((*letters[i])[dim], shape[dim]);
      if (is_new || at->second == shape[dim]) continue;
      refuse(fmt::format("found shapes {} and {} for \"{}\", needed one extent for \"{}\"",
                         to_string(operands[0].shape), to_string(operands[1].shape),
                         equation.to_string(), at->first));
    }
  }
  return extents;
}

/// Throws unless the result has the operands' dtype or a wider one of the same kind.
void need_result(DType operands, DType result) {
  if (result == operands || (is_floating(result) == is_floating(operands) &&
                             is_signed_integer(result) == is_signed_integer(operands) &&
                             is_computed(result) && size_bytes(result) > size_bytes(operands))) {
    return;
  }
  refuse(fmt::format("found {} for a product of {}, needed a wider dtype of the same kind",
                     name(result), name(operands)));
}

TensorType dot_type(const TypeCall& call) {
  need_operands(call, 2);
  need_same_dtype(call);
  need_numbers(call.operands[0].dtype);
  const Equation& equation = call.get<DotAttributes>().equation;
  const auto extents = extents_of(equation, call.operands);
  TensorType type{call.get<DotAttributes>().result.value_or(call.operands[0].dtype), {}};
  need_result(call.operands[0].dtype, type.dtype);
  for (const char letter : equation.result) type.shape.push_back(extents.at(letter));
  return type;
}

FactorRule dot_rule(const Node& node, std::span<const TensorType> operands) {
  const Equation& equation = std::get<DotAttributes>(node.attributes).equation;
  RuleBuilder rule(node, operands);
  std::map<char, std::int32_t> factors;
  for (const auto& [letter, extent] : extents_of(equation, operands)) {
    const bool kept = equation.result.find(letter) != std::string::npos;
    factors[letter] =
        rule.factor(extent, kept ? Factor::Kind::pass_through : Factor::Kind::reduction);
  }
  for (std::size_t d = 0; d < equation.lhs.size(); ++d) rule.in(0, d, factors[equation.lhs[d]]);
  for (std::size_t d = 0; d < equation.rhs.size(); ++d) rule.in(1, d, factors[equation.rhs[d]]);
  for (std::size_t d = 0; d < equation.result.size(); ++d) {
    rule.out(d, factors[equation.result[d]]);
  }
  return rule.take();
}

/// The gradient of one operand, given the letters of both. Letters that only this operand and the
/// result have come from the cotangent, so every letter is in the cotangent or in the other
/// operand.
NodeRef dot_gradient_of(const NodeRef& cotangent, const std::string& result, const NodeRef& other,
                        const std::string& others, const std::string& mine) {
  const NodeRef wide = convert(other, cotangent.type().dtype);
  return einsum(Equation{result, others, mine}, cotangent, wide);
}

/// Computed in the result's dtype, if that is wider.
Gradients dot_gradient(const GradientCall& call) {
  const Equation& equation = call.get<DotAttributes>().equation;
  const DType dtype = call.operands[0].type().dtype;
  Gradients gradients(2);
  if (call.wanted[0]) {
    gradients[0] = convert(dot_gradient_of(call.cotangent, equation.result, call.operands[1],
                                           equation.rhs, equation.lhs),
                           dtype);
  }
  if (call.wanted[1]) {
    // Keeps the operands in their order: x'dy, as a weight's gradient is written.
    const NodeRef wide = convert(call.operands[0], call.cotangent.type().dtype);
    gradients[1] = convert(
        einsum(Equation{equation.lhs, equation.result, equation.rhs}, wide, call.cotangent), dtype);
  }
  return gradients;
}

void dot_kernel(const KernelCall& call) {
  einsum(call.get<DotAttributes>().equation, call.operands[0], call.operands[1], call.out);
}

}  // namespace

std::vector<OpRow> dot_rows() {
  return {{Op::dot_general,
           OpRow::Takes<DotAttributes>(),
           dot_type,
           dot_rule,
           dot_gradient,
           dot_kernel,
           {.is_product = true}}};
}

}  // namespace shardwise::detail
