#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "shardwise/runtime/kernels/detail/reduce_window.h"
#include "shardwise/runtime/ops/detail/rules.h"

namespace shardwise::detail {
namespace {

TensorType windows_type(const TypeCall& call, std::size_t operands) {
  need_operands(call, operands);
  const TensorType& x = call.operands[0];
  const std::size_t rank = x.shape.size();
  const auto& a = call.get<WindowAttributes>();
  need_each(a.window, rank, 1, "extents of the window");
  need_each(a.stride, rank, 1, "strides");
  need_each(a.low, rank, INT64_MIN, "padding before");
  need_each(a.high, rank, INT64_MIN, "padding after");
  need_each(a.dilation, rank, 1, "dilations of the window");
  TensorType type{x.dtype, {}};
  for (std::size_t d = 0; d < rank; ++d) {
    type.shape.push_back(places({x.shape[d], a.low[d], a.high[d]},
                                dilated(a.window[d], a.dilation[d]), a.stride[d]));
  }
  return type;
}

TensorType window_max_type(const TypeCall& call) { return windows_type(call, 1); }

TensorType window_sum_type(const TypeCall& call) {
  TensorType type = windows_type(call, 1);
  need_numbers(type.dtype);
  return type;
}

TensorType select_and_scatter_type(const TypeCall& call) {
  const TensorType windows = windows_type(call, 2);
  need_same_dtype(call);
  need_numbers(windows.dtype);
  if (!(call.operands[1].shape == windows.shape)) {
    refuse(fmt::format("found a source of shape {}, needed {}: an element for each window",
                       to_string(call.operands[1].shape), to_string(windows.shape)));
  }
  return call.operands[0];
}

/// The last element of a window, counted from its first.
std::int64_t last_of(const WindowAttributes& a, std::size_t dim) {
  return (a.window[dim] - 1) * a.dilation[dim];
}

/// True if element i of the dim depends only on element i.
bool is_plain(const WindowAttributes& a, std::size_t dim, std::int64_t extent,
              std::int64_t windows) {
  return a.window[dim] == 1 && a.stride[dim] == 1 && a.low[dim] == 0 && extent == windows;
}

FactorRule reduce_window_rule(const Node& node, std::span<const TensorType> operands) {
  const auto& a = std::get<WindowAttributes>(node.attributes);
  RuleBuilder rule(node, operands);
  for (std::size_t d = 0; d < node.type.shape.size(); ++d) {
    const std::int64_t extent = operands[0].shape[d], windows = node.type.shape[d];
    const std::int32_t place = rule.factor(windows);
    rule.out(d, place);
    if (is_plain(a, d, extent, windows)) {
      rule.in(0, d, place);
    } else if (windows == 0) {
      rule.whole(0, d);
    } else {
      rule.window(0, d, place,
                  {.scale = a.stride[d], .low = -a.low[d], .high = last_of(a, d) - a.low[d]});
    }
  }
  return rule.take();
}

/// An element of the result needs the windows that contain it, and all elements of x in these.
FactorRule select_and_scatter_rule(const Node& node, std::span<const TensorType> operands) {
  const auto& a = std::get<WindowAttributes>(node.attributes);
  RuleBuilder rule(node, operands);
  for (std::size_t d = 0; d < node.type.shape.size(); ++d) {
    const std::int64_t extent = node.type.shape[d], windows = operands[1].shape[d];
    const std::int32_t element = rule.factor(extent);
    rule.out(d, element);
    if (is_plain(a, d, extent, windows)) {
      rule.in(0, d, element);
      rule.in(1, d, element);
    } else if (extent == 0 || windows == 0) {
      rule.whole(0, d);
      rule.whole(1, d);
    } else {
      rule.window(0, d, element, {.low = -last_of(a, d), .high = last_of(a, d)});
      rule.window(1, d, element,
                  {.low = a.low[d] - last_of(a, d), .high = a.low[d], .divide = a.stride[d]});
    }
  }
  return rule.take();
}

/// Each element gets the sum over the windows that have it: a window over the result's gradient,
/// spread by the strides.
Gradients window_sum_gradient(const GradientCall& call) {
  const auto a = call.get<WindowAttributes>();
  const Shape from = call.operands[0].type().shape, to = call.result.type().shape;
  if (num_elements(from) == 0 || num_elements(to) == 0) return {full_like(call.operands[0], 0)};
  WindowAttributes back = a;
  bool is_spread = false;
  for (std::size_t d = 0; d < from.size(); ++d) {
    back.stride[d] = 1;
    back.low[d] = last_of(a, d) - a.low[d];
    back.high[d] = from[d] - dilated(to[d], a.stride[d]) + a.low[d];
    is_spread |= a.stride[d] > 1;
  }
  const Dims none = Dims::filled(from.size(), 0);
  const NodeRef spread = is_spread ? pad(call.cotangent, none, none, a.stride, 0) : call.cotangent;
  return {reduce_window_sum(spread, back)};
}

Gradients window_max_gradient(const GradientCall& call) {
  return {select_and_scatter_add(call.operands[0], call.cotangent, call.get<WindowAttributes>())};
}

Gradients select_and_scatter_gradient(const GradientCall& call) {
  if (call.wanted[1]) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}: found a gradient of the values that it adds up, needed one of its first "
                    "operand alone: a maximum of windows is derived once",
                    name(call.result.graph->node(call.result.id).op)));
  }
  return Gradients(2);
}

void window_sum_kernel(const KernelCall& call) {
  reduce_window_sum(call.get<WindowAttributes>(), call.operands[0], call.out);
}
void window_max_kernel(const KernelCall& call) {
  reduce_window_max(call.get<WindowAttributes>(), call.operands[0], call.out);
}
void select_and_scatter_kernel(const KernelCall& call) {
  select_and_scatter_add(call.get<WindowAttributes>(), call.operands[0], call.operands[1],
                         call.out);
}

}  // namespace

std::vector<OpRow> window_rows() {
  const OpRow::Takes<WindowAttributes> windows;
  return {{Op::reduce_window_sum,
           windows,
           window_sum_type,
           reduce_window_rule,
           window_sum_gradient,
           window_sum_kernel,
           {.linear = Linear::in_one}},
          {Op::reduce_window_max, windows, window_max_type, reduce_window_rule, window_max_gradient,
           window_max_kernel},
          {Op::select_and_scatter_add, windows, select_and_scatter_type, select_and_scatter_rule,
           select_and_scatter_gradient, select_and_scatter_kernel}};
}

}  // namespace shardwise::detail
