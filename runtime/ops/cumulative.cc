#include "shardwise/runtime/kernels/detail/reduce_dims.h"
#include "shardwise/runtime/ops/detail/rules.h"

namespace shardwise::detail {
namespace {

TensorType cumulative_type(const TypeCall& call) {
  need_operands(call, 1);
  need_dim(call.get<CumulativeAttributes>().dim, call.operands[0].shape.size());
  need_numbers(call.operands[0].dtype);
  return call.operands[0];
}

TensorType cumlogsumexp_type(const TypeCall& call) {
  TensorType type = cumulative_type(call);
  if (!is_floating(type.dtype)) refuse_dtype(type.dtype, "a floating type");
  return type;
}

FactorRule cumulative_rule(const Node& node, std::span<const TensorType> operands) {
  RuleBuilder rule(node, operands);
  for (std::size_t dim = 0; dim < node.type.shape.size(); ++dim) {
    const bool along =
        static_cast<std::int64_t>(dim) == std::get<CumulativeAttributes>(node.attributes).dim;
    const std::int32_t factor = rule.factor(
        node.type.shape[dim], along ? Factor::Kind::need_replication : Factor::Kind::pass_through);
    rule.in(0, dim, factor);
    rule.out(dim, factor);
  }
  return rule.take();
}

Gradients cumsum_gradient(const GradientCall& call) {
  const auto a = call.get<CumulativeAttributes>();
  return {cumsum(call.cotangent, a.dim, !a.reverse)};
}

/// The gradient goes to the last element that is the extreme so far, which is one of the elements.
Gradients extreme_so_far_gradient(const GradientCall& call) {
  const auto a = call.get<CumulativeAttributes>();
  const NodeRef &x = call.operands[0], &y = call.result;
  const TensorType places{DType::i32, x.type().shape};
  need_small_index(places.shape[as_size(a.dim)]);
  const NodeRef place = iota(x, places, a.dim);
  const NodeRef is_it = logical_or(eq(x, y), ne(x, x));  // NaN, which stays
  const NodeRef found =
      a.reverse ? cummin(select(is_it, place, full_like(place, places.shape[as_size(a.dim)] - 1)),
                         a.dim, true)
                : cummax(select(is_it, place, full_like(place, 0)), a.dim);
  return {scatter_add_along(found, call.cotangent, a.dim, places.shape[as_size(a.dim)])};
}

/// The elements `by` places later in the order of a cumulation, or earlier if it is negative;
/// `number` where there is no such element.
NodeRef moved_along(const NodeRef& x, const CumulativeAttributes& a, std::int64_t by,
                    double number) {
  const std::size_t dim = as_size(a.dim);
  Dims end = x.type().shape, begin = Dims::filled(end.size(), 0), low = begin, high = begin;
  if (a.reverse) by = -by;
  (by > 0 ? begin : low)[dim] = by > 0 ? by : -by;
  if (by > 0) {
    high[dim] = by;
  } else {
    end[dim] += by;
  }
  return pad(slice(x, begin, end), low, high, number);
}

/// s[i] = g[i] + factor[i] * s[next i], from the last on: log2 of the extent steps.
NodeRef recurrence(NodeRef g, NodeRef factor, const CumulativeAttributes& a) {
  const std::int64_t extent = g.type().shape[as_size(a.dim)];
  for (std::int64_t by = 1; by < extent; by *= 2) {
    g = g + factor * moved_along(g, a, by, 0);
    if (2 * by < extent) factor = factor * moved_along(factor, a, by, 0);
  }
  return g;
}

/// Uses no division, so zeros do not matter.
Gradients cumprod_gradient(const GradientCall& call) {
  const auto a = call.get<CumulativeAttributes>();
  if (num_elements(call.result.type().shape) == 0) return {full_like(call.operands[0], 0)};
  const NodeRef before = moved_along(call.result, a, -1, 1);
  return {before * recurrence(call.cotangent, moved_along(call.operands[0], a, 1, 0), a)};
}

Gradients cumlogsumexp_gradient(const GradientCall& call) {
  const auto a = call.get<CumulativeAttributes>();
  const NodeRef &x = call.operands[0], &y = call.result;
  if (num_elements(y.type().shape) == 0) return {full_like(x, 0)};
  // Infinite values have no difference.
  const NodeRef none = full_like(y, 0);
  const auto exp_of = [&](const NodeRef& difference) {
    return select(is_finite(difference), exp(difference), none);
  };
  const NodeRef ratios = exp_of(y - moved_along(y, a, 1, 0));
  const NodeRef is_last = moved_along(full_like(y, 1), a, 1, 0);  // zero at the last
  return {exp_of(x - y) * recurrence(call.cotangent, ratios * is_last, a)};
}

template <Cumulation C>
void cumulative_kernel(const KernelCall& call) {
  const auto& a = call.get<CumulativeAttributes>();
  cumulate(C, a.reverse ? CumulationOrder::reverse : CumulationOrder::forward, call.operands[0],
           as_size(a.dim), call.out);
}

}  // namespace

std::vector<OpRow> cumulative_rows() {
  const OpRow::Takes<CumulativeAttributes> along;
  return {{Op::cumsum, along, cumulative_type, cumulative_rule, cumsum_gradient,
           cumulative_kernel<Cumulation::sum>},
          {Op::cumprod, along, cumulative_type, cumulative_rule, cumprod_gradient,
           cumulative_kernel<Cumulation::product>},
          {Op::cummax, along, cumulative_type, cumulative_rule, extreme_so_far_gradient,
           cumulative_kernel<Cumulation::max>},
          {Op::cummin, along, cumulative_type, cumulative_rule, extreme_so_far_gradient,
           cumulative_kernel<Cumulation::min>},
          {Op::cumlogsumexp, along, cumlogsumexp_type, cumulative_rule, cumlogsumexp_gradient,
           cumulative_kernel<Cumulation::logsumexp>}};
}

}  // namespace shardwise::detail
