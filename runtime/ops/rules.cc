#include "shardwise/runtime/ops/detail/rules.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>

#include "shardwise/shard/error.h"

namespace shardwise::detail {

void refuse(const std::string& found_and_needed) {
  throw Error(ErrorCode::invalid_argument, found_and_needed);
}

void refuse_dtype(DType dtype, std::string_view needed) {
  throw Error(ErrorCode::unsupported, fmt::format("found {}, needed {}", name(dtype), needed));
}

void need_numbers(DType dtype) {
  if (dtype == DType::boolean) refuse_dtype(dtype, "numbers: convert it");
}

void need_operands(const TypeCall& call, std::size_t count) {
  if (call.operands.size() == count) return;
  refuse(fmt::format("found {} operands, needed {}", call.operands.size(), count));
}

void need_same_dtype(const TypeCall& call) {
  for (const TensorType& type : call.operands) {
    if (type.dtype == call.operands.front().dtype) continue;
    refuse(fmt::format("found operands of {} and {}, needed one dtype: convert one of them",
                       to_string(call.operands.front()), to_string(type)));
  }
}

std::size_t need_dim(std::int64_t dim, std::size_t rank) {
  if (dim < 0 || dim >= static_cast<std::int64_t>(rank)) {
    refuse(fmt::format("found dim {}, needed one of the {} dims of the operand", dim, rank));
  }
  return as_size(dim);
}

void need_dims(const Dims& dims, std::size_t rank) {
  std::int64_t last = -1;
  for (const std::int64_t dim : dims) {
    if (dim <= last || dim >= static_cast<std::int64_t>(rank)) {
      refuse(fmt::format("found dims {}, needed dims below {}, ascending, each once",
                         to_string(dims), rank));
    }
    last = dim;
  }
}

void need_small_index(std::int64_t extent) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (extent <= kMost) return;
  refuse(fmt::format("found {} elements, needed at most {}: indices are i32", extent, kMost));
}

void need_each(const Dims& numbers, std::size_t count, std::int64_t least, std::string_view what) {
  bool fits = numbers.size() == count;
  for (const std::int64_t number : numbers) fits = fits && number >= least;
  if (fits) return;
  refuse(fmt::format("found {} {}, needed {} numbers of at least {}", what, to_string(numbers),
                     count, least));
}

std::int64_t dilated(std::int64_t extent, std::int64_t dilation) {
  std::int64_t spread = 0;
  if (extent == 0) return 0;
  if (__builtin_mul_overflow(extent - 1, dilation, &spread) ||
      __builtin_add_overflow(spread, 1, &spread)) {
    refuse(
        fmt::format("found {} elements {} apart, needed an extent below 2^63", extent, dilation));
  }
  return spread;
}

std::int64_t places(const PaddedExtent& dim, std::int64_t window, std::int64_t stride) {
  std::int64_t all = 0;
  if (__builtin_add_overflow(dim.extent, dim.low, &all) ||
      __builtin_add_overflow(all, dim.high, &all)) {
    refuse(fmt::format("found padding {} and {}, needed an extent below 2^63", dim.low, dim.high));
  }
  return all < window || all < 0 ? 0 : (all - window) / stride + 1;
}

bool is_index(DType dtype) { return dtype == DType::i32 || dtype == DType::i64; }

RuleBuilder::RuleBuilder(const Node& node, std::span<const TensorType> operands)
    : node_(node), operands_(operands) {
  for (const TensorType& type : operands) rule_.operands.emplace_back(type.shape.size());
  rule_.result.resize(node.type.shape.size());
}

std::int32_t RuleBuilder::factor(std::int64_t size, Factor::Kind kind) {
  rule_.factors.push_back({size, kind});
  return static_cast<std::int32_t>(rule_.factors.size()) - 1;
}

void RuleBuilder::in(std::size_t operand, std::size_t dim, std::int32_t factor) {
  rule_.operands[operand][dim].factors.push_back(factor);
}

void RuleBuilder::out(std::size_t dim, std::int32_t factor) {
  rule_.result[dim].factors.push_back(factor);
}

void RuleBuilder::window(std::size_t operand, std::size_t dim, std::int32_t factor, Window window) {
  FactorList& list = rule_.operands[operand][dim];
  window.extent = rule_.factors[as_size(factor)].size;
  const std::int64_t size = operands_[operand].shape[dim];
  list.needs_all = window.range(0, window.extent, size) == std::pair(std::int64_t{0}, size);
  list.factors.push_back(factor);
  list.windows.push_back(window);
}

void RuleBuilder::same(std::size_t operand, std::size_t dim, std::size_t result_dim) {
  const std::int32_t shared = factor(operands_[operand].shape[dim]);
  in(operand, dim, shared);
  out(result_dim, shared);
}

void RuleBuilder::whole(std::size_t operand, std::size_t dim) {
  in(operand, dim, factor(operands_[operand].shape[dim], Factor::Kind::need_replication));
}

void RuleBuilder::free(std::size_t result_dim) {
  out(result_dim, factor(node_.type.shape[result_dim]));
}

Gradients no_gradient(const GradientCall& call) { return Gradients(call.operands.size()); }

FactorRule whole_rule(const Node& node, std::span<const TensorType> operands) {
  return RuleBuilder(node, operands).take();
}

FactorRule free_rule(const Node& node, std::span<const TensorType> operands) {
  RuleBuilder rule(node, operands);
  for (std::size_t dim = 0; dim < node.type.shape.size(); ++dim) rule.free(dim);
  return rule.take();
}

}  // namespace shardwise::detail
