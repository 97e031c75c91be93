#include "shardwise/runtime/kernels/detail/index.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/runtime/kernels/detail/layout.h"
#include "shardwise/runtime/ops/detail/rules.h"

namespace shardwise::detail {
namespace {

void need_ids(const TensorType& type) {
  if (!is_index(type.dtype)) {
    refuse(fmt::format("found ids of {}, needed i32 or i64", name(type.dtype)));
  }
}

std::int64_t need_extent(const ScatterAttributes& a) {
  if (a.extent < 0) refuse(fmt::format("found extent {}, needed at least 0", a.extent));
  return a.extent;
}

// ---- take and its gradient: dim `dim` of x is replaced by the dims of ids.

TensorType take_type(const TypeCall& call) {
  need_operands(call, 2);
  const TensorType &x = call.operands[0], &ids = call.operands[1];
  need_ids(ids);
  const std::size_t dim = need_dim(call.get<DimAttributes>().dim, x.shape.size());
  TensorType type{x.dtype, {}};
  for (std::size_t d = 0; d < x.shape.size(); ++d) {
    if (d != dim) {
      type.shape.push_back(x.shape[d]);
    } else {
      for (const std::int64_t extent : ids.shape) type.shape.push_back(extent);
    }
  }
  return type;
}

TensorType scatter_type(const TypeCall& call) {
  need_operands(call, 2);
  const TensorType &ids = call.operands[0], &updates = call.operands[1];
  need_ids(ids);
  need_numbers(updates.dtype);
  const std::int64_t extent = need_extent(call.get<ScatterAttributes>());
  const std::size_t rank = ids.shape.size();
  const std::size_t dim = need_dim(call.get<ScatterAttributes>().dim, updates.shape.size() + 1);
  bool fits = updates.shape.size() >= dim + rank;
  for (std::size_t d = 0; fits && d < rank; ++d) fits = updates.shape[dim + d] == ids.shape[d];
  if (!fits) {
    refuse(
        fmt::format("found updates of {} for ids of {}, needed the dims of the ids from dim {} on",
                    to_string(updates.shape), to_string(ids.shape), dim));
  }
  TensorType type{updates.dtype, {}};
  for (std::size_t d = 0; d < dim; ++d) type.shape.push_back(updates.shape[d]);
  type.shape.push_back(extent);
  for (std::size_t d = dim + rank; d < updates.shape.size(); ++d) {
    type.shape.push_back(updates.shape[d]);
  }
  return type;
}

FactorRule take_rule(const Node& node, std::span<const TensorType> operands) {
  RuleBuilder rule(node, operands);
  const std::size_t dim = as_size(std::get<DimAttributes>(node.attributes).dim),
                    rank = operands[1].shape.size();
  std::size_t at = 0;  // in the result
  for (std::size_t d = 0; d < operands[0].shape.size(); ++d) {
    if (d != dim) {
      rule.same(0, d, at++);
    } else {
      // Each device looks up ids in its own part of the table; the others give zeros.
      rule.combine(Reduction::bit_or);
      rule.in(0, d, rule.factor(operands[0].shape[d], Factor::Kind::reduction));
      for (std::size_t i = 0; i < rank; ++i) rule.same(1, i, at++);
    }
  }
  return rule.take();
}

FactorRule scatter_rule(const Node& node, std::span<const TensorType> operands) {
  RuleBuilder rule(node, operands);
  const std::size_t dim = as_size(std::get<ScatterAttributes>(node.attributes).dim),
                    rank = operands[0].shape.size();
  for (std::size_t d = 0; d < node.type.shape.size(); ++d) {
    if (d < dim) rule.same(1, d, d);
    if (d == dim) rule.free(d);  // each device keeps the ids in its range
    if (d > dim) rule.same(1, d + rank - 1, d);
  }
  for (std::size_t i = 0; i < rank; ++i) {
    const std::int32_t factor = rule.factor(operands[0].shape[i], Factor::Kind::reduction);
    rule.in(0, i, factor);
    rule.in(1, dim + i, factor);
  }
  return rule.take();
}

Gradients take_gradient(const GradientCall& call) {
  Gradients gradients(2);
  const std::int64_t dim = call.get<DimAttributes>().dim;
  const std::int64_t extent = call.operands[0].type().shape[as_size(dim)];
  gradients[0] = scatter_add(call.operands[1], call.cotangent, dim, extent);
  return gradients;
}

Gradients scatter_gradient(const GradientCall& call) {
  Gradients gradients(2);
  gradients[1] = take(call.cotangent, call.operands[0], call.get<ScatterAttributes>().dim);
  return gradients;
}

void take_kernel(const KernelCall& call) {
  const std::size_t dim = as_size(call.get<DimAttributes>().dim);
  take(call.operands[0], call.operands[1], dim, call.operand_types[0].shape[dim], call.out);
}
void scatter_kernel(const KernelCall& call) {
  const auto& a = call.get<ScatterAttributes>();
  scatter_add(call.operands[0], call.operands[1], as_size(a.dim), a.extent, call.out);
}

// ---- take_along and its gradient: ids for each element along one dim.

void need_same_but(const Shape& a, const Shape& b, std::size_t dim) {
  Shape others = b;
  if (a.size() == b.size()) others[dim] = a[dim];
  if (!(others == a)) {
    refuse(fmt::format("found shapes {} and {}, needed the same but for dim {}", to_string(a),
                       to_string(b), dim));
  }
}

TensorType take_along_type(const TypeCall& call) {
  need_operands(call, 2);
  need_ids(call.operands[1]);
  const Shape& shape = call.operands[0].shape;
  need_same_but(shape, call.operands[1].shape,
                need_dim(call.get<DimAttributes>().dim, shape.size()));
  return {call.operands[0].dtype, call.operands[1].shape};
}

TensorType scatter_along_type(const TypeCall& call) {
  need_operands(call, 2);
  need_ids(call.operands[0]);
  need_numbers(call.operands[1].dtype);
  TensorType type = call.operands[1];
  const std::size_t dim = need_dim(call.get<ScatterAttributes>().dim, type.shape.size());
  if (!(call.operands[0].shape == type.shape)) {
    refuse(fmt::format("found ids of {} and updates of {}, needed one shape",
                       to_string(call.operands[0].shape), to_string(type.shape)));
  }
  type.shape[dim] = need_extent(call.get<ScatterAttributes>());
  return type;
}

FactorRule take_along_rule(const Node& node, std::span<const TensorType> operands) {
  RuleBuilder rule(node, operands);
  rule.combine(Reduction::bit_or);  // as take
  for (std::size_t d = 0; d < node.type.shape.size(); ++d) {
    const std::int32_t factor = rule.factor(node.type.shape[d]);
    rule.in(1, d, factor);
    rule.out(d, factor);
    const bool along = static_cast<std::int64_t>(d) == std::get<DimAttributes>(node.attributes).dim;
    rule.in(0, d, along ? rule.factor(operands[0].shape[d], Factor::Kind::reduction) : factor);
  }
  return rule.take();
}

FactorRule scatter_along_rule(const Node& node, std::span<const TensorType> operands) {
  RuleBuilder rule(node, operands);
  for (std::size_t d = 0; d < node.type.shape.size(); ++d) {
    const bool along =
        static_cast<std::int64_t>(d) == std::get<ScatterAttributes>(node.attributes).dim;
    const std::int32_t factor = rule.factor(
        operands[1].shape[d], along ? Factor::Kind::reduction : Factor::Kind::pass_through);
    rule.in(0, d, factor);
    rule.in(1, d, factor);
    if (along) {
      rule.free(d);
    } else {
      rule.out(d, factor);
    }
  }
  return rule.take();
}

Gradients take_along_gradient(const GradientCall& call) {
  Gradients gradients(2);
  const std::int64_t dim = call.get<DimAttributes>().dim;
  const std::int64_t extent = call.operands[0].type().shape[as_size(dim)];
  gradients[0] = scatter_add_along(call.operands[1], call.cotangent, dim, extent);
  return gradients;
}

Gradients scatter_along_gradient(const GradientCall& call) {
  Gradients gradients(2);
  gradients[1] = take_along(call.cotangent, call.operands[0], call.get<ScatterAttributes>().dim);
  return gradients;
}

void take_along_kernel(const KernelCall& call) {
  const std::size_t dim = as_size(call.get<DimAttributes>().dim);
  take_along(call.operands[0], call.operands[1], dim, call.operand_types[0].shape[dim], call.out);
}
void scatter_along_kernel(const KernelCall& call) {
  const auto& a = call.get<ScatterAttributes>();
  scatter_add_along(call.operands[0], call.operands[1], as_size(a.dim), a.extent, call.out);
}

// ---- Slices at computed places.

void need_starts(const TypeCall& call, std::size_t first, const Shape& shape) {
  need_operands(call, first + shape.size());
  for (std::size_t i = first; i < call.operands.size(); ++i) {
    need_ids(call.operands[i]);
    if (!call.operands[i].shape.empty()) {
      refuse(fmt::format("found a start of shape {}, needed a scalar",
                         to_string(call.operands[i].shape)));
    }
  }
}

void need_inside(const Shape& part, const Shape& whole) {
  bool fits = part.size() == whole.size();
  for (std::size_t d = 0; fits && d < part.size(); ++d) fits = part[d] >= 0 && part[d] <= whole[d];
  if (fits) return;
  refuse(fmt::format("found a part of {}, needed one that fits into {}", to_string(part),
                     to_string(whole)));
}

TensorType dynamic_slice_type(const TypeCall& call) {
  if (call.operands.empty()) refuse("found no operands, needed a tensor and its starts");
  need_starts(call, 1, call.operands[0].shape);
  need_inside(call.get<ShapeAttributes>().shape, call.operands[0].shape);
  return {call.operands[0].dtype, call.get<ShapeAttributes>().shape};
}

TensorType dynamic_update_type(const TypeCall& call) {
  if (call.operands.size() < 2)
    refuse("found no update, needed a tensor, an update and its starts");
  need_starts(call, 2, call.operands[0].shape);
  need_inside(call.operands[1].shape, call.operands[0].shape);
  if (call.operands[0].dtype != call.operands[1].dtype) {
    refuse(fmt::format("found an update of {} for {}, needed one dtype",
                       to_string(call.operands[1]), to_string(call.operands[0])));
  }
  return call.operands[0];
}

FactorRule dynamic_slice_rule(const Node& node, std::span<const TensorType> operands) {
  RuleBuilder rule(node, operands);
  for (std::size_t d = 0; d < node.type.shape.size(); ++d) {
    if (node.type.shape[d] == operands[0].shape[d]) {
      rule.same(0, d, d);  // the start is clamped to 0
    } else {
      // Each device gives its own elements of the part; the others give zeros.
      rule.combine(Reduction::bit_or);
      rule.in(0, d, rule.factor(operands[0].shape[d], Factor::Kind::reduction));
      rule.free(d);
    }
  }
  return rule.take();
}

FactorRule dynamic_update_rule(const Node& node, std::span<const TensorType> operands) {
  RuleBuilder rule(node, operands);
  for (std::size_t d = 0; d < node.type.shape.size(); ++d) {
    const std::int32_t factor = rule.factor(node.type.shape[d]);
    rule.in(0, d, factor);
    rule.out(d, factor);
    if (operands[1].shape[d] == node.type.shape[d]) {
      rule.in(1, d, factor);
    } else {
      rule.whole(1, d);
    }
  }
  return rule.take();
}

/// All starts, as arguments of the functions that append.
std::vector<NodeRef> starts_of(const GradientCall& call, std::size_t first) {
  return {call.operands.begin() + static_cast<std::ptrdiff_t>(first), call.operands.end()};
}

Gradients dynamic_slice_gradient(const GradientCall& call) {
  Gradients gradients(call.operands.size());
  const NodeRef none = full_like(call.operands[0], 0);
  gradients[0] = dynamic_update_slice(none, call.cotangent, starts_of(call, 1));
  return gradients;
}

Gradients dynamic_update_gradient(const GradientCall& call) {
  Gradients gradients(call.operands.size());
  const Shape part = call.operands[1].type().shape;
  if (call.wanted[0]) {
    const NodeRef none = full_like(call.operands[1], 0);
    gradients[0] = dynamic_update_slice(call.cotangent, none, starts_of(call, 2));
  }
  if (call.wanted[1]) gradients[1] = dynamic_slice(call.cotangent, starts_of(call, 2), part);
  return gradients;
}

/// The start of a part of shape `part` in `whole`, clamped so that the part is inside.
Dims clamped_starts(std::span<const ConstShardView> starts, const Shape& part, const Shape& whole) {
  Dims clamped;
  for (std::size_t d = 0; d < whole.size(); ++d) {
    std::int64_t start = 0;
    convert(starts[d].dtype, starts[d].data, DType::i64, reinterpret_cast<std::byte*>(&start), 1);
    clamped.push_back(std::clamp<std::int64_t>(start, 0, whole[d] - part[d]));
  }
  return clamped;
}

void dynamic_slice_kernel(const KernelCall& call) {
  dynamic_slice(
      call.operands[0],
      clamped_starts(call.operands.subspan(1), call.type.shape, call.operand_types[0].shape),
      call.out);
}
void dynamic_update_kernel(const KernelCall& call) {
  dynamic_update_slice(
      call.operands[0], call.operands[1],
      clamped_starts(call.operands.subspan(2), call.operand_types[1].shape, call.type.shape),
      call.out);
}

// ---- Sorting.

TensorType argsort_type(const TypeCall& call) {
  need_operands(call, 1);
  const Shape& shape = call.operands[0].shape;
  need_small_index(shape[need_dim(call.get<SortAttributes>().dim, shape.size())]);
  return {DType::i32, shape};
}

FactorRule argsort_rule(const Node& node, std::span<const TensorType> operands) {
  RuleBuilder rule(node, operands);
  for (std::size_t d = 0; d < node.type.shape.size(); ++d) {
    const bool along =
        static_cast<std::int64_t>(d) == std::get<SortAttributes>(node.attributes).dim;
    const std::int32_t factor = rule.factor(
        node.type.shape[d], along ? Factor::Kind::need_replication : Factor::Kind::pass_through);
    rule.in(0, d, factor);
    rule.out(d, factor);
  }
  return rule.take();
}

void argsort_kernel(const KernelCall& call) {
  const auto& a = call.get<SortAttributes>();
  argsort(call.operands[0], as_size(a.dim),
          a.descending ? SortOrder::descending : SortOrder::ascending, call.out);
}

}  // namespace

std::vector<OpRow> index_rows() {
  const OpRow::Takes<DimAttributes> dim;
  const OpRow::Takes<ScatterAttributes> scatter;
  constexpr OpTraits kMoves{.only_moves = true};
  return {{Op::take, dim, take_type, take_rule, take_gradient, take_kernel, kMoves},
          {Op::scatter_add, scatter, scatter_type, scatter_rule, scatter_gradient, scatter_kernel},
          {Op::take_along, dim, take_along_type, take_along_rule, take_along_gradient,
           take_along_kernel, kMoves},
          {Op::scatter_add_along, scatter, scatter_along_type, scatter_along_rule,
           scatter_along_gradient, scatter_along_kernel},
          {Op::dynamic_slice, OpRow::Takes<ShapeAttributes>(), dynamic_slice_type,
           dynamic_slice_rule, dynamic_slice_gradient, dynamic_slice_kernel, kMoves},
          {Op::dynamic_update_slice, dynamic_update_type, dynamic_update_rule,
           dynamic_update_gradient, dynamic_update_kernel, kMoves},
          {Op::argsort, OpRow::Takes<SortAttributes>(), argsort_type, argsort_rule, no_gradient,
           argsort_kernel}};
}

}  // namespace shardwise::detail
