#include "shardwise/runtime/kernels/detail/layout.h"

#include <fmt/format.h>

#include <cstring>
#include <numeric>
#include <optional>

#include "shardwise/runtime/ops/detail/rules.h"

namespace shardwise::detail {
namespace {

// ---- Types.

TensorType broadcast_type(const TypeCall& call) {
  need_operands(call, 1);
  const Shape &from = call.operands[0].shape, &to = call.wanted.shape;
  const Dims& dims = call.get<DimsAttributes>().dims;
  need_dims(dims, to.size());
  if (dims.size() != from.size()) {
    refuse(fmt::format("found {} dims for an operand of shape {}, needed one for each of its dims",
                       dims.size(), to_string(from)));
  }
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (from[i] == 1 || from[i] == to[as_size(dims[i])]) continue;
    refuse(fmt::format("found extent {} in dim {} of {}, needed 1 or the {} of {}", from[i], i,
                       to_string(from), to[as_size(dims[i])], to_string(to)));
  }
  return {call.operands[0].dtype, to};
}

TensorType transpose_type(const TypeCall& call) {
  need_operands(call, 1);
  const Shape& shape = call.operands[0].shape;
  const Dims& dims = call.get<DimsAttributes>().dims;
  std::vector<bool> used(shape.size(), false);
  bool fits = dims.size() == shape.size();
  for (std::size_t i = 0; fits && i < dims.size(); ++i) {
    fits = dims[i] >= 0 && dims[i] < static_cast<std::int64_t>(shape.size()) &&
           !used[as_size(dims[i])];
    if (fits) used[as_size(dims[i])] = true;
  }
  if (!fits) {
    refuse(fmt::format("found order {} for shape {}, needed each of its dims once", to_string(dims),
                       to_string(shape)));
  }
  TensorType type{call.operands[0].dtype, {}};
  for (const std::int64_t dim : dims) type.shape.push_back(shape[as_size(dim)]);
  return type;
}

TensorType reshape_type(const TypeCall& call) {
  need_operands(call, 1);
  const Shape &from = call.operands[0].shape, &to = call.wanted.shape;
  if (num_elements(from) != num_elements(to)) {
    refuse(fmt::format("found {} of {} elements, needed the {} of {}", to_string(to),
                       num_elements(to), num_elements(from), to_string(from)));
  }
  return {call.operands[0].dtype, to};
}

TensorType slice_type(const TypeCall& call) {
  need_operands(call, 1);
  const Shape& shape = call.operands[0].shape;
  const auto& a = call.get<SliceAttributes>();
  if (a.begin.size() != shape.size() || a.end.size() != shape.size() ||
      a.stride.size() != shape.size()) {
    refuse(fmt::format("found begin {}, end {}, stride {}, needed one of each for each dim of {}",
                       to_string(a.begin), to_string(a.end), to_string(a.stride),
                       to_string(shape)));
  }
  TensorType type{call.operands[0].dtype, {}};
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (a.begin[dim] < 0 || a.end[dim] < a.begin[dim] || a.end[dim] > shape[dim] ||
        a.stride[dim] < 1) {
      refuse(
          fmt::format("found [{}:{}:{}] in dim {}, needed a range in [0:{}] and a stride of at "
                      "least 1",
                      a.begin[dim], a.end[dim], a.stride[dim], dim, shape[dim]));
    }
    const std::int64_t range = a.end[dim] - a.begin[dim];
    type.shape.push_back(range == 0 ? 0 : (range - 1) / a.stride[dim] + 1);
  }
  return type;
}

[[noreturn]] void refuse_extent(std::size_t dim, const std::string& found) {
  refuse(fmt::format("found {} in dim {}, needed an extent below 2^63", found, dim));
}

/// The extent of a padded dim.
std::int64_t padded(std::int64_t extent, const PadAttributes& a, std::size_t dim) {
  std::int64_t result = 0;
  const bool fits = extent == 0 || (!__builtin_mul_overflow(extent - 1, a.stride[dim], &result) &&
                                    !__builtin_add_overflow(result, 1, &result));
  if (!fits || __builtin_add_overflow(result, a.low[dim], &result) ||
      __builtin_add_overflow(result, a.high[dim], &result)) {
    refuse_extent(dim, fmt::format("{} elements, {} before, {} after, stride {}", extent,
                                   a.low[dim], a.high[dim], a.stride[dim]));
  }
  return result;
}

TensorType pad_type(const TypeCall& call) {
  need_operands(call, 1);
  const Shape& shape = call.operands[0].shape;
  const auto& a = call.get<PadAttributes>();
  if (a.low.size() != shape.size() || a.high.size() != shape.size() ||
      a.stride.size() != shape.size()) {
    refuse(
        fmt::format("found {} before, {} after, stride {}, needed one of each for each dim of {}",
                    to_string(a.low), to_string(a.high), to_string(a.stride), to_string(shape)));
  }
  TensorType type{call.operands[0].dtype, {}};
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (a.low[dim] < 0 || a.high[dim] < 0 || a.stride[dim] < 1) {
      refuse(
          fmt::format("found {} before and {} after dim {}, stride {}, needed at least 0, 0 and 1",
                      a.low[dim], a.high[dim], dim, a.stride[dim]));
    }
    type.shape.push_back(padded(shape[dim], a, dim));
  }
  return type;
}

TensorType concatenate_type(const TypeCall& call) {
  if (call.operands.empty()) refuse("found no operands, needed one");
  need_same_dtype(call);
  TensorType type = call.operands[0];
  const std::size_t dim = need_dim(call.get<DimAttributes>().dim, type.shape.size());
  std::int64_t extent = 0;
  for (const TensorType& operand : call.operands) {
    Shape others = operand.shape;
    if (others.size() == type.shape.size()) others[dim] = type.shape[dim];
    if (!(others == type.shape)) {
      refuse(fmt::format("found shapes {} and {}, needed the same but for dim {}",
                         to_string(call.operands[0].shape), to_string(operand.shape), dim));
    }
    if (__builtin_add_overflow(extent, operand.shape[dim], &extent)) {
      refuse_extent(dim, fmt::format("parts of {} elements and more", operand.shape[dim]));
    }
  }
  type.shape[dim] = extent;
  return type;
}

TensorType reverse_type(const TypeCall& call) {
  need_operands(call, 1);
  need_dims(call.get<DimsAttributes>().dims, call.operands[0].shape.size());
  return call.operands[0];
}

// ---- Factors.

FactorRule broadcast_rule(const Node& node, std::span<const TensorType> operands) {
  RuleBuilder rule(node, operands);
  const Dims& dims = std::get<DimsAttributes>(node.attributes).dims;
  std::vector<bool> made(node.type.shape.size(), false);
  for (std::size_t i = 0; i < dims.size(); ++i) {
    const std::size_t dim = as_size(dims[i]);
    if (operands[0].shape[i] != node.type.shape[dim]) continue;
    rule.same(0, i, dim);
    made[dim] = true;
  }
  for (std::size_t dim = 0; dim < made.size(); ++dim) {
    if (!made[dim]) rule.free(dim);
  }
  return rule.take();
}

FactorRule transpose_rule(const Node& node, std::span<const TensorType> operands) {
  RuleBuilder rule(node, operands);
  const Dims& dims = std::get<DimsAttributes>(node.attributes).dims;
  for (std::size_t dim = 0; dim < dims.size(); ++dim) {
    rule.same(0, as_size(dims[dim]), dim);
  }
  return rule.take();
}

/// The factors that both shapes have in common, major first: for [12, 16] and [16, 12], the 4 that
/// is major in both; the rest must be whole.
FactorRule reshape_rule(const Node& node, std::span<const TensorType> operands) {
  RuleBuilder rule(node, operands);
  const Shape &from = operands[0].shape, &to = node.type.shape;
  if (num_elements(from) == 0) return rule.take();  // nothing to cut
  const auto whole = [](std::int64_t size, const auto& put) {
    if (size > 1) put(size);
  };
  constexpr auto kWhole = Factor::Kind::need_replication;
  std::size_t i = 0, j = 0;
  std::int64_t a = 1, b = 1;  // remaining factors of from[i - 1] and to[j - 1]
  while (true) {
    while (a == 1 && i < from.size()) a = from[i++];
    while (b == 1 && j < to.size()) b = to[j++];
    if (a == 1 && b == 1) break;
    const std::int64_t common = std::gcd(a, b);
    if (common > 1) {
      const std::int32_t factor = rule.factor(common);
      rule.in(0, i - 1, factor);
      rule.out(j - 1, factor);
      a /= common;
      b /= common;
    }
    if (a == 1 || b == 1) continue;
    // No common factor is major in both: whole up to the dims where the two meet again.
    std::int64_t left = a, right = b;
    whole(a, [&](std::int64_t size) { rule.in(0, i - 1, rule.factor(size, kWhole)); });
    whole(b, [&](std::int64_t size) { rule.out(j - 1, rule.factor(size, kWhole)); });
    while (left != right) {
      if (left < right) {
        left *= from[i];
        whole(from[i], [&](std::int64_t size) { rule.in(0, i, rule.factor(size, kWhole)); });
        ++i;
      } else {
        right *= to[j];
        whole(to[j], [&](std::int64_t size) { rule.out(j, rule.factor(size, kWhole)); });
        ++j;
      }
    }
    a = b = 1;
  }
  return rule.take();
}

/// Each dim of the result is a factor, which the operands' dim also has: directly, or, if
/// window_of(operand, dim) gives a window, by that.
template <class WindowOf>
FactorRule window_rule(const Node& node, std::span<const TensorType> operands,
                       const WindowOf& window_of) {
  RuleBuilder rule(node, operands);
  for (std::size_t dim = 0; dim < node.type.shape.size(); ++dim) {
    const std::int32_t factor = rule.factor(node.type.shape[dim]);
    rule.out(dim, factor);
    for (std::size_t i = 0; i < operands.size(); ++i) {
      if (const std::optional<Window> window = window_of(i, dim)) {
        rule.window(i, dim, factor, *window);
      } else {
        rule.in(i, dim, factor);
      }
    }
  }
  return rule.take();
}

FactorRule slice_rule(const Node& node, std::span<const TensorType> operands) {
  const auto& a = std::get<SliceAttributes>(node.attributes);
  return window_rule(node, operands, [&](std::size_t, std::size_t dim) -> std::optional<Window> {
    if (node.type.shape[dim] == operands[0].shape[dim]) return {};
    return Window{.scale = a.stride[dim], .low = a.begin[dim], .high = a.begin[dim]};
  });
}

FactorRule pad_rule(const Node& node, std::span<const TensorType> operands) {
  const auto& a = std::get<PadAttributes>(node.attributes);
  return window_rule(node, operands, [&](std::size_t, std::size_t dim) -> std::optional<Window> {
    if (node.type.shape[dim] == operands[0].shape[dim]) return {};
    return Window{.low = -a.low[dim], .high = -a.low[dim], .divide = a.stride[dim]};
  });
}

FactorRule concatenate_rule(const Node& node, std::span<const TensorType> operands) {
  const std::size_t along = as_size(std::get<DimAttributes>(node.attributes).dim);
  std::vector<std::int64_t> before(operands.size(), 0);  // elements of earlier operands
  for (std::size_t i = 1; i < operands.size(); ++i) {
    before[i] = before[i - 1] + operands[i - 1].shape[along];
  }
  return window_rule(node, operands, [&](std::size_t i, std::size_t dim) -> std::optional<Window> {
    if (dim != along || operands.size() == 1) return {};
    return Window{.low = -before[i], .high = -before[i]};
  });
}

FactorRule reverse_rule(const Node& node, std::span<const TensorType> operands) {
  const Dims& dims = std::get<DimsAttributes>(node.attributes).dims;
  return window_rule(node, operands, [&](std::size_t, std::size_t dim) -> std::optional<Window> {
    if (std::find(dims.begin(), dims.end(), static_cast<std::int64_t>(dim)) == dims.end()) {
      return {};
    }
    const std::int64_t last = node.type.shape[dim] - 1;
    return Window{.scale = -1, .low = last, .high = last};
  });
}

// ---- Gradients.

Gradients broadcast_gradient(const GradientCall& call) {
  const TensorType &from = call.operands[0].type(), &to = call.result.type();
  const Dims& dims = call.get<DimsAttributes>().dims;
  Dims summed;
  for (std::size_t dim = 0; dim < to.shape.size(); ++dim) {
    bool kept = false;
    for (std::size_t i = 0; i < from.shape.size(); ++i) {
      kept |= as_size(dims[i]) == dim && from.shape[i] == to.shape[dim];
    }
    if (!kept) summed.push_back(static_cast<std::int64_t>(dim));
  }
  const Shape shape = from.shape;  // the graph grows, its nodes move
  return {reshape(summed.empty() ? call.cotangent : reduce_sum(call.cotangent, summed), shape)};
}

Gradients transpose_gradient(const GradientCall& call) {
  const Dims& dims = call.get<DimsAttributes>().dims;
  Dims inverse = dims;
  for (std::size_t i = 0; i < inverse.size(); ++i) {
    inverse[as_size(dims[i])] = static_cast<std::int64_t>(i);
  }
  return {transpose(call.cotangent, inverse)};
}

Gradients reshape_gradient(const GradientCall& call) {
  const Shape shape = call.operands[0].type().shape;
  return {reshape(call.cotangent, shape)};
}

Gradients slice_gradient(const GradientCall& call) {
  const Shape &from = call.operands[0].type().shape, &to = call.result.type().shape;
  const auto& a = call.get<SliceAttributes>();
  Dims low = a.begin, high = low;
  for (std::size_t dim = 0; dim < from.size(); ++dim) {
    const std::int64_t spread = to[dim] == 0 ? 0 : (to[dim] - 1) * a.stride[dim] + 1;
    high[dim] = from[dim] - low[dim] - spread;
  }
  return {pad(call.cotangent, low, high, Dims(a.stride), 0)};
}

Gradients pad_gradient(const GradientCall& call) {
  const Shape &from = call.operands[0].type().shape, &to = call.result.type().shape;
  const auto& a = call.get<PadAttributes>();
  const Dims begin = a.low;
  Dims end = begin;
  for (std::size_t dim = 0; dim < from.size(); ++dim) {
    end[dim] = from[dim] == 0 ? begin[dim] : to[dim] - a.high[dim];
  }
  return {slice(call.cotangent, begin, end, Dims(a.stride))};
}

Gradients concatenate_gradient(const GradientCall& call) {
  Gradients gradients;
  const std::size_t dim = as_size(call.get<DimAttributes>().dim);
  Dims begin = Dims::filled(call.result.type().shape.size(), 0);
  Dims end = call.result.type().shape;
  end[dim] = 0;
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    begin[dim] = end[dim];
    end[dim] += call.operands[i].type().shape[dim];
    gradients.push_back(call.wanted[i] ? std::optional(slice(call.cotangent, begin, end))
                                       : std::nullopt);
  }
  return gradients;
}

Gradients reverse_gradient(const GradientCall& call) {
  return {reverse(call.cotangent, Dims(call.get<DimsAttributes>().dims))};
}

// ---- Kernels.

void broadcast_kernel(const KernelCall& call) {
  broadcast(call.operands[0], call.get<DimsAttributes>().dims, call.out);
}
void transpose_kernel(const KernelCall& call) {
  transpose(call.operands[0], call.get<DimsAttributes>().dims, call.out);
}
// Factors cut both in the same way, so a device's elements are the same in the same order.
void reshape_kernel(const KernelCall& call) {
  if (call.out.data == call.operands[0].data) return;
  std::memcpy(call.out.data, call.operands[0].data,
              num_bytes(call.out.box.shape(), size_bytes(call.out.dtype)));
}
void slice_kernel(const KernelCall& call) {
  const auto& a = call.get<SliceAttributes>();
  slice(call.operands[0], a.begin, a.stride, call.out);
}
void pad_kernel(const KernelCall& call) {
  const auto& a = call.get<PadAttributes>();
  pad(call.operands[0], a.low, a.stride, a.number, call.out);
}
void concatenate_kernel(const KernelCall& call) {
  const std::size_t dim = as_size(call.get<DimAttributes>().dim);
  std::vector<std::int64_t> extents;
  for (const TensorType& type : call.operand_types) extents.push_back(type.shape[dim]);
  concatenate(call.operands, extents, dim, call.out);
}
void reverse_kernel(const KernelCall& call) {
  reverse(call.operands[0], call.get<DimsAttributes>().dims, call.type.shape, call.out);
}

}  // namespace

std::vector<OpRow> layout_rows() {
  const OpRow::Takes<DimsAttributes> dims;
  constexpr OpTraits kMoves{.only_moves = true, .is_remade = true};
  return {{Op::broadcast, dims, broadcast_type, broadcast_rule, broadcast_gradient,
           broadcast_kernel, kMoves},
          {Op::transpose,
           dims,
           transpose_type,
           transpose_rule,
           transpose_gradient,
           transpose_kernel,
           {.only_moves = true, .is_remade = true, .linear = Linear::in_one}},
          {Op::reshape,
           reshape_type,
           reshape_rule,
           reshape_gradient,
           reshape_kernel,
           {.is_alias = true, .only_moves = true, .linear = Linear::in_one}},
          {Op::slice,
           OpRow::Takes<SliceAttributes>(),
           slice_type,
           slice_rule,
           slice_gradient,
           slice_kernel,
           {.only_moves = true, .is_remade = true, .linear = Linear::in_one}},
          {Op::pad,
           OpRow::Takes<PadAttributes>(),
           pad_type,
           pad_rule,
           pad_gradient,
           pad_kernel,
           {.is_remade = true, .linear = Linear::in_one}},
          {Op::concatenate,
           OpRow::Takes<DimAttributes>(),
           concatenate_type,
           concatenate_rule,
           concatenate_gradient,
           concatenate_kernel,
           {.only_moves = true, .is_remade = true, .linear = Linear::in_all}},
          {Op::reverse,
           dims,
           reverse_type,
           reverse_rule,
           reverse_gradient,
           reverse_kernel,
           {.only_moves = true, .is_remade = true, .linear = Linear::in_one}}};
}

}  // namespace shardwise::detail
