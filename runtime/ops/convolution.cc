#include "shardwise/runtime/kernels/detail/convolution.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "shardwise/runtime/ops/detail/rules.h"

namespace shardwise::detail {
namespace {

void need_order(const Dims& dims, const Shape& shape, std::string_view what) {
  std::vector<bool> used(shape.size(), false);
  bool fits = dims.size() == shape.size() && dims.size() >= 2;
  for (std::size_t i = 0; fits && i < dims.size(); ++i) {
    fits = dims[i] >= 0 && dims[i] < std::ssize(used) && !used[as_size(dims[i])];
    if (fits) used[as_size(dims[i])] = true;
  }
  if (fits) return;
  refuse(
      fmt::format("found the dims {} of the {} of shape {}, needed each of its dims once, at least "
                  "two",
                  to_string(dims), what, to_string(shape)));
}

void need_groups(std::int64_t groups, std::int64_t extent, std::string_view what) {
  if (groups >= 1 && extent % groups == 0) return;
  refuse(fmt::format("found {} groups of {} {}, needed a number that divides it", groups, extent,
                     what));
}

TensorType convolution_type(const TypeCall& call) {
  need_operands(call, 2);
  need_same_dtype(call);
  need_numbers(call.operands[0].dtype);
  const auto& a = call.get<ConvolutionAttributes>();
  const Shape &lhs = call.operands[0].shape, &rhs = call.operands[1].shape;
  need_order(a.lhs, lhs, "operand");
  need_order(a.rhs, rhs, "kernel");
  need_order(a.out, lhs, "result");
  const std::size_t spatial = lhs.size() - 2;
  if (rhs.size() != lhs.size()) {
    refuse(fmt::format("found an operand of shape {} and a kernel of shape {}, needed as many dims",
                       to_string(lhs), to_string(rhs)));
  }
  need_each(a.stride, spatial, 1, "strides");
  need_each(a.lhs_dilation, spatial, 1, "dilations of the operand");
  need_each(a.rhs_dilation, spatial, 1, "dilations of the kernel");
  need_each(a.low, spatial, INT64_MIN, "padding before");
  need_each(a.high, spatial, INT64_MIN, "padding after");
  const auto of = [](const Shape& shape, const Dims& dims, std::size_t i) {
    return shape[as_size(dims[i])];
  };
  const std::int64_t features = of(lhs, a.lhs, 1), kernels = of(rhs, a.rhs, 0);
  need_groups(a.feature_groups, features, "features of the operand");
  need_groups(a.feature_groups, kernels, "features of the result");
  need_groups(a.batch_groups, of(lhs, a.lhs, 0), "images");
  need_groups(a.batch_groups, kernels, "features of the result");
  if (a.feature_groups > 1 && a.batch_groups > 1) {
    refuse(fmt::format("found {} groups of features and {} of images, needed one of them to be 1",
                       a.feature_groups, a.batch_groups));
  }
  if (features / a.feature_groups != of(rhs, a.rhs, 1)) {
    refuse(fmt::format("found {} features in {} groups and a kernel of {}, needed {}", features,
                       a.feature_groups, of(rhs, a.rhs, 1), features / a.feature_groups));
  }
  TensorType type{call.operands[0].dtype, lhs};
  type.shape[as_size(a.out[0])] = of(lhs, a.lhs, 0) / a.batch_groups;
  type.shape[as_size(a.out[1])] = kernels;
  for (std::size_t i = 0; i < spatial; ++i) {
    type.shape[as_size(a.out[i + 2])] =
        places({dilated(of(lhs, a.lhs, i + 2), a.lhs_dilation[i]), a.low[i], a.high[i]},
               dilated(of(rhs, a.rhs, i + 2), a.rhs_dilation[i]), a.stride[i]);
  }
  return type;
}

FactorRule convolution_rule(const Node& node, std::span<const TensorType> operands) {
  const auto& a = std::get<ConvolutionAttributes>(node.attributes);
  RuleBuilder rule(node, operands);
  const Shape &lhs = operands[0].shape, &rhs = operands[1].shape, &out = node.type.shape;
  const auto in = [&](std::size_t operand, std::size_t i, std::int32_t factor) {
    rule.in(operand, as_size(operand == 0 ? a.lhs[i] : a.rhs[i]), factor);
  };
  // Groups are the major factor of the dim that they divide.
  const std::int64_t groups = std::max(a.feature_groups, a.batch_groups);
  if (groups > 1) {
    const std::int32_t group = rule.factor(groups);
    in(0, a.feature_groups > 1 ? 1 : 0, group);
    in(1, 0, group);
    rule.out(as_size(a.out[1]), group);
  }
  const std::int32_t image = rule.factor(out[as_size(a.out[0])]);
  in(0, 0, image);
  rule.out(as_size(a.out[0]), image);
  const std::int32_t kernel = rule.factor(out[as_size(a.out[1])] / groups);
  in(1, 0, kernel);
  rule.out(as_size(a.out[1]), kernel);
  const std::int32_t feature = rule.factor(rhs[as_size(a.rhs[1])], Factor::Kind::reduction);
  in(0, 1, feature);
  in(1, 1, feature);
  for (std::size_t i = 0; i < a.stride.size(); ++i) {
    const std::int64_t extent = lhs[as_size(a.lhs[i + 2])], taps = rhs[as_size(a.rhs[i + 2])],
                       places = out[as_size(a.out[i + 2])];
    const std::int32_t place = rule.factor(places);
    rule.out(as_size(a.out[i + 2]), place);
    const std::int32_t tap = rule.factor(taps, Factor::Kind::reduction);
    in(1, i + 2, tap);
    const bool is_plain = taps == 1 && places == extent && a.stride[i] == 1 && a.low[i] == 0 &&
                          a.lhs_dilation[i] == 1;
    if (is_plain) {
      in(0, i + 2, place);
      continue;
    }
    if (taps == 0 || places == 0) {
      rule.whole(0, as_size(a.lhs[i + 2]));
      continue;
    }
    const auto window = [&](std::int32_t factor, std::int64_t scale, std::int64_t others) {
      rule.window(0, as_size(a.lhs[i + 2]), factor,
                  {.scale = scale,
                   .low = -a.low[i],
                   .high = others - a.low[i],
                   .divide = a.lhs_dilation[i]});
    };
    window(place, a.stride[i], (taps - 1) * a.rhs_dilation[i]);
    window(tap, a.rhs_dilation[i], (places - 1) * a.stride[i]);
  }
  return rule.take();
}

/// Moves groups, the major factor of dim `from`, to the major end of dim `to`: a kernel [O, I / g,
/// ..] becomes [O / g, I, ..].
NodeRef with_groups_moved(const NodeRef& x, std::int64_t from, std::int64_t to,
                          std::int64_t groups) {
  const Shape shape = x.type().shape;
  Shape split, merged = shape;
  Dims order;
  for (std::int64_t dim = 0; dim < std::ssize(shape); ++dim) {
    if (dim == from) split.push_back(groups);
    split.push_back(dim == from ? shape[as_size(dim)] / groups : shape[as_size(dim)]);
    if (dim == to) order.push_back(from);
    order.push_back(dim < from ? dim : dim + 1);
  }
  merged[as_size(from)] /= groups;
  merged[as_size(to)] *= groups;
  return reshape(transpose(reshape(x, split), order), merged);
}

/// The operand's gradient: the result's gradient, spread by the strides, with the kernel reversed.
NodeRef operand_gradient(const GradientCall& call, const ConvolutionAttributes& a) {
  const Shape lhs = call.operands[0].type().shape, rhs = call.operands[1].type().shape,
              out = call.result.type().shape;
  ConvolutionAttributes back = a;
  back.lhs = a.out;
  std::swap(back.rhs[0], back.rhs[1]);
  back.out = a.lhs;
  back.stride = a.lhs_dilation;
  back.lhs_dilation = a.stride;
  Dims turned;
  for (std::size_t i = 0; i < a.stride.size(); ++i) {
    turned.push_back(a.rhs[i + 2]);
    const std::int64_t kernel = dilated(rhs[as_size(a.rhs[i + 2])], a.rhs_dilation[i]);
    back.low[i] = kernel - a.low[i] - 1;
    back.high[i] = dilated(lhs[as_size(a.lhs[i + 2])], a.lhs_dilation[i]) + kernel - 1 -
                   dilated(out[as_size(a.out[i + 2])], a.stride[i]) - back.low[i];
  }
  std::sort(turned.begin(), turned.end());
  NodeRef kernel = reverse(call.operands[1], turned);
  const std::int64_t groups = std::max(a.feature_groups, a.batch_groups);
  if (groups > 1) kernel = with_groups_moved(kernel, a.rhs[0], a.rhs[1], groups);
  // Each group of images had its own features of the result: now it has a group of features, which
  // become images again.
  back.feature_groups = groups;
  back.batch_groups = 1;
  const NodeRef made = append_to(call.cotangent, Op::convolution, {call.cotangent, kernel}, back);
  return a.batch_groups == 1 ? made : with_groups_moved(made, a.lhs[1], a.lhs[0], a.batch_groups);
}

/// The kernel's gradient: a convolution of the operand, with images and features swapped, by the
/// result's gradient.
NodeRef kernel_gradient(const GradientCall& call, const ConvolutionAttributes& a) {
  const Shape lhs = call.operands[0].type().shape, rhs = call.operands[1].type().shape,
              out = call.result.type().shape;
  ConvolutionAttributes back = a;
  std::swap(back.lhs[0], back.lhs[1]);
  back.rhs = a.out;
  std::swap(back.rhs[0], back.rhs[1]);
  back.out = a.rhs;
  std::swap(back.out[0], back.out[1]);
  back.stride = a.rhs_dilation;
  back.rhs_dilation = a.stride;
  back.feature_groups = a.batch_groups;
  back.batch_groups = a.feature_groups;
  for (std::size_t i = 0; i < a.stride.size(); ++i) {
    // The last element that counts is the one that the last tap reads at the last place.
    const std::int64_t reach = dilated(rhs[as_size(a.rhs[i + 2])], a.rhs_dilation[i]) +
                               dilated(out[as_size(a.out[i + 2])], a.stride[i]) - 1;
    back.high[i] = reach - dilated(lhs[as_size(a.lhs[i + 2])], a.lhs_dilation[i]) - a.low[i];
  }
  return append_to(call.cotangent, Op::convolution, {call.operands[0], call.cotangent}, back);
}

Gradients convolution_gradient(const GradientCall& call) {
  const ConvolutionAttributes a = call.get<ConvolutionAttributes>();
  Gradients gradients(2);
  if (num_elements(call.result.type().shape) == 0) {
    for (std::size_t i = 0; i < 2; ++i) {
      if (call.wanted[i]) gradients[i] = full_like(call.operands[i], 0);
    }
    return gradients;
  }
  if (call.wanted[0]) gradients[0] = operand_gradient(call, a);
  if (call.wanted[1]) gradients[1] = kernel_gradient(call, a);
  return gradients;
}

void convolution_kernel(const KernelCall& call) {
  convolution(call.get<ConvolutionAttributes>(),
              {call.operand_types[0].shape, call.operand_types[1].shape, call.type.shape},
              call.operands[0], call.operands[1], call.out);
}

}  // namespace

std::vector<OpRow> convolution_rows() {
  return {{Op::convolution,
           OpRow::Takes<ConvolutionAttributes>(),
           convolution_type,
           convolution_rule,
           convolution_gradient,
           convolution_kernel,
           {.is_product = true}}};
}

}  // namespace shardwise::detail
