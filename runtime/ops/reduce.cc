#include <algorithm>

#include "shardwise/runtime/kernels/detail/reduce_dims.h"
#include "shardwise/runtime/ops/detail/rules.h"

namespace shardwise::detail {
namespace {

bool has(const Dims& dims, std::size_t dim) {
  return std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(dim)) != dims.end();
}

Shape without(const Shape& shape, const Dims& dims) {
  Shape kept;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (!has(dims, dim)) kept.push_back(shape[dim]);
  }
  return kept;
}

/// The dims that are not reduced.
Dims kept_dims(std::size_t rank, const Dims& reduced) {
  Dims kept;
  for (std::size_t dim = 0; dim < rank; ++dim) {
    if (!has(reduced, dim)) kept.push_back(static_cast<std::int64_t>(dim));
  }
  return kept;
}

TensorType reduce_type(const TypeCall& call) {
  need_operands(call, 1);
  const Dims& dims = call.get<DimsAttributes>().dims;
  need_dims(dims, call.operands[0].shape.size());
  return {call.operands[0].dtype, without(call.operands[0].shape, dims)};
}

TensorType sum_type(const TypeCall& call) {
  need_operands(call, 1);
  need_numbers(call.operands[0].dtype);
  return reduce_type(call);
}

TensorType index_of_type(const TypeCall& call) {
  need_operands(call, 2);
  need_same_dtype(call);
  const Shape& shape = call.operands[0].shape;
  need_small_index(shape[need_dim(call.get<DimAttributes>().dim, shape.size())]);
  const Shape kept = without(shape, {call.get<DimAttributes>().dim});
  if (call.operands[1].shape != kept) {
    refuse("found a second operand of " + to_string(call.operands[1].shape) + ", needed " +
           to_string(kept) + ": an element for each row of the first");
  }
  return {DType::i32, kept};
}

FactorRule rule_over(const Node& node, std::span<const TensorType> operands, const Dims& dims) {
  RuleBuilder rule(node, operands);
  const Shape& shape = operands[0].shape;
  std::size_t result_dim = 0;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (has(dims, dim)) {
      rule.in(0, dim, rule.factor(shape[dim], Factor::Kind::reduction));
    } else {
      rule.same(0, dim, result_dim++);
    }
  }
  return rule.take();
}

template <Reduction R>
FactorRule reduce_rule(const Node& node, std::span<const TensorType> operands) {
  FactorRule rule = rule_over(node, operands, std::get<DimsAttributes>(node.attributes).dims);
  rule.reduction = R;
  return rule;
}

/// Each device finds the first of its part; the least of these is the first of all.
FactorRule index_of_rule(const Node& node, std::span<const TensorType> operands) {
  FactorRule rule = rule_over(node, operands, {std::get<DimAttributes>(node.attributes).dim});
  rule.operands[1] = rule.result;
  rule.reduction = Reduction::min;
  return rule;
}

/// A tensor without the reduced dims, repeated along them.
NodeRef spread(const NodeRef& x, const Shape& shape, const Dims& reduced) {
  return broadcast(x, shape, kept_dims(shape.size(), reduced));
}

Gradients sum_gradient(const GradientCall& call) {
  const Shape shape = call.operands[0].type().shape;
  return {spread(call.cotangent, shape, Dims(call.get<DimsAttributes>().dims))};
}

/// The elements that equal the extreme share the gradient evenly.
Gradients extreme_gradient(const GradientCall& call) {
  const TensorType type = call.operands[0].type();
  const Dims dims = call.get<DimsAttributes>().dims;
  const NodeRef here = eq(call.operands[0], spread(call.result, type.shape, dims));
  const NodeRef mask = convert(here, type.dtype);
  const NodeRef each = call.cotangent / reduce_sum(mask, dims);
  return {mask * spread(each, type.shape, dims)};
}

/// Multiplies the elements before each and those after it: no division, so zeros do not matter.
Gradients product_gradient(const GradientCall& call) {
  const Shape shape = call.operands[0].type().shape;
  const Dims dims = call.get<DimsAttributes>().dims, kept = kept_dims(shape.size(), dims);
  // The reduced dims as one, the last.
  Dims order = kept, back = Dims::filled(shape.size(), 0);
  for (const std::int64_t dim : dims) order.push_back(dim);
  Shape moved;
  for (std::size_t i = 0; i < order.size(); ++i) {
    moved.push_back(shape[as_size(order[i])]);
    back[as_size(order[i])] = static_cast<std::int64_t>(i);
  }
  Shape flat = without(shape, dims);
  const std::size_t last = flat.size();
  flat.push_back(1);
  for (const std::int64_t dim : dims) flat[last] *= shape[as_size(dim)];
  if (num_elements(flat) == 0) return {full_like(call.operands[0], 0)};
  const NodeRef x = reshape(transpose(call.operands[0], order), flat);
  const auto one_less = [&](const NodeRef& products, std::int64_t first) {
    Dims begin = Dims::filled(flat.size(), 0), end = flat, low = begin, high = begin;
    begin[last] = first;
    end[last] = flat[last] - 1 + first;
    low[last] = 1 - first;
    high[last] = first;
    return pad(slice(products, begin, end), low, high, 1);
  };
  const auto along = static_cast<std::int64_t>(last);
  const NodeRef before = one_less(cumprod(x, along), 0);
  const NodeRef after = one_less(cumprod(x, along, true), 1);
  const NodeRef others = transpose(reshape(before * after, moved), back);
  return {spread(call.cotangent, shape, dims) * others};
}

template <Reduction R>
void reduce_kernel(const KernelCall& call) {
  reduce_dims(R, call.operands[0], call.get<DimsAttributes>().dims, call.out);
}
void index_of_kernel(const KernelCall& call) {
  index_of(call.operands[0], call.operands[1], as_size(call.get<DimAttributes>().dim), call.out);
}

}  // namespace

std::vector<OpRow> reduce_rows() {
  const OpRow::Takes<DimsAttributes> dims;
  const OpRow::Takes<DimAttributes> dim;
  return {{Op::reduce_sum,
           dims,
           sum_type,
           reduce_rule<Reduction::sum>,
           sum_gradient,
           reduce_kernel<Reduction::sum>,
           {.linear = Linear::in_one}},
          {Op::reduce_max, dims, reduce_type, reduce_rule<Reduction::max>, extreme_gradient,
           reduce_kernel<Reduction::max>},
          {Op::reduce_min, dims, reduce_type, reduce_rule<Reduction::min>, extreme_gradient,
           reduce_kernel<Reduction::min>},
          {Op::reduce_prod, dims, sum_type, reduce_rule<Reduction::product>, product_gradient,
           reduce_kernel<Reduction::product>},
          {Op::index_of, dim, index_of_type, index_of_rule, no_gradient, index_of_kernel}};
}

}  // namespace shardwise::detail
