#include <fmt/format.h>

#include "shardwise/runtime/kernels/detail/index.h"
#include "shardwise/runtime/ops/detail/rules.h"

namespace shardwise::detail {
namespace {

TensorType scatter_into_type(const TypeCall& call) {
  need_operands(call, 3);
  const TensorType &x = call.operands[0], &ids = call.operands[1], &updates = call.operands[2];
  const auto& a = call.get<ScatterIntoAttributes>();
  if (!is_index(ids.dtype)) {
    refuse(fmt::format("found ids of {}, needed i32 or i64", name(ids.dtype)));
  }
  const std::size_t dim = need_dim(a.dim, x.shape.size());
  TensorType rows{x.dtype, {}};
  for (std::size_t d = 0; d < x.shape.size(); ++d) {
    if (d != dim) {
      rows.shape.push_back(x.shape[d]);
    } else {
      for (const std::int64_t extent : ids.shape) rows.shape.push_back(extent);
    }
  }
  if (!(updates == rows)) {
    refuse(fmt::format("found updates of {}, needed {}: a row of the first operand for each id",
                       to_string(updates), to_string(rows)));
  }
  if (a.combination == Combination::add || a.combination == Combination::mul) {
    need_numbers(x.dtype);
  }
  if (a.mode == OutOfRange::clip && x.shape[dim] == 0 && num_elements(ids.shape) > 0) {
    refuse("found a dim of extent 0, needed an element for ids that are clipped");
  }
  return x;
}

/// Updates come in the order of the ids, so these are whole; each device applies those in its
/// range.
FactorRule scatter_into_rule(const Node& node, std::span<const TensorType> operands) {
  RuleBuilder rule(node, operands);
  const std::size_t dim = as_size(std::get<ScatterIntoAttributes>(node.attributes).dim),
                    rank = operands[1].shape.size();
  for (std::size_t d = 0; d < node.type.shape.size(); ++d) {
    const std::int32_t factor = rule.factor(node.type.shape[d]);
    rule.in(0, d, factor);
    rule.out(d, factor);
    if (d != dim) rule.in(2, d < dim ? d : d + rank - 1, factor);
  }
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int32_t factor = rule.factor(operands[1].shape[i], Factor::Kind::need_replication);
    rule.in(1, i, factor);
    rule.in(2, dim + i, factor);
  }
  return rule.take();
}

/// The ids inside the range, and for each whether it counts: it is not left out, and among equal
/// ones that are set it is the last.
struct Counted {
  NodeRef ids, counts;
};
Counted counted(const NodeRef& ids, std::int64_t extent, const ScatterIntoAttributes& a) {
  const NodeRef inside = clamp(0, ids, extent - 1);
  NodeRef counts = a.mode == OutOfRange::drop ? eq(inside, ids) : eq(ids, ids);
  if (a.combination != Combination::set) return {inside, counts};
  const Shape shape = ids.type().shape;
  need_small_index(num_elements(shape));
  const NodeRef number = reshape(iota(ids, {DType::i32, {num_elements(shape)}}, 0), shape);
  const NodeRef none = constant(ids, {DType::i32, {extent}}, -1);
  const NodeRef last = scatter(none, ids, number, 0, Combination::set, a.mode);
  counts = logical_and(counts, eq(take(last, inside, 0), number));
  return {inside, counts};
}

Gradients scatter_into_gradient(const GradientCall& call) {
  const auto a = call.get<ScatterIntoAttributes>();
  if (a.combination != Combination::set && a.combination != Combination::add) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}{}: found a gradient of it, needed one of updates that are set or "
                    "added",
                    name(call.result.graph->node(call.result.id).op), to_string(call.attributes)));
  }
  Gradients gradients(3);
  const NodeRef &ids = call.operands[1], &g = call.cotangent;
  const std::int64_t extent = call.operands[0].type().shape[as_size(a.dim)];
  const Shape rows = call.operands[2].type().shape;
  if (call.wanted[0]) {
    const bool is_set = a.combination == Combination::set;
    gradients[0] =
        is_set ? scatter(g, ids, full_like(call.operands[2], 0), a.dim, Combination::set, a.mode)
               : g;
  }
  if (!call.wanted[2]) return gradients;
  if (extent == 0 || num_elements(rows) == 0) {
    gradients[2] = full_like(call.operands[2], 0);
    return gradients;
  }
  const Counted c = counted(ids, extent, a);
  Dims dims;
  for (std::size_t i = 0; i < ids.type().shape.size(); ++i) {
    dims.push_back(a.dim + static_cast<std::int64_t>(i));
  }
  const NodeRef taken = take(g, c.ids, a.dim);
  gradients[2] = select(broadcast(c.counts, rows, dims), taken, full_like(taken, 0));
  return gradients;
}

void scatter_into_kernel(const KernelCall& call) {
  const auto& a = call.get<ScatterIntoAttributes>();
  scatter(a, call.type.shape[as_size(a.dim)], call.operands[0], call.operands[1], call.operands[2],
          call.out);
}

}  // namespace

std::vector<OpRow> scatter_rows() {
  return {{Op::scatter, OpRow::Takes<ScatterIntoAttributes>(), scatter_into_type, scatter_into_rule,
           scatter_into_gradient, scatter_into_kernel}};
}

}  // namespace shardwise::detail
