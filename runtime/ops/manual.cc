#include <fmt/format.h>

#include <cassert>
#include <cstring>

#include "shardwise/runtime/ops/detail/rules.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

TensorType manual_type(const TypeCall& call) {
  need_operands(call, 1);
  if (call.get<ManualAttributes>().sums && !is_computed(call.operands[0].dtype)) {
    refuse_dtype(call.operands[0].dtype, "a type that is computed with");
  }
  if (call.wanted.shape.size() != call.operands[0].shape.size()) {
    refuse(fmt::format("found shape {} for {}, needed as many dims", to_string(call.wanted.shape),
                       to_string(call.operands[0])));
  }
  return {call.operands[0].dtype, call.wanted.shape};
}

TensorType all_reduce_type(const TypeCall& call) {
  need_operands(call, 1);
  return call.operands[0];
}

NodeRef enter(const NodeRef& x, const PartitionSpec& spec, const Shape& shape) {
  return append_to(x, Op::enter_manual, {x}, ManualAttributes{spec}, {x.type().dtype, shape});
}

/// Each replica of a shard has a part of the gradient.
Gradients enter_gradient(const GradientCall& call) {
  const Shape shape = call.operands[0].type().shape;
  return {append_to(call.cotangent, Op::leave_manual, {call.cotangent},
                    ManualAttributes{call.get<ManualAttributes>().spec, 1, true},
                    {call.cotangent.type().dtype, shape})};
}

/// Each of several equal replicas has an equal share in the result.
Gradients leave_gradient(const GradientCall& call) {
  const Shape shape = call.operands[0].type().shape;
  const auto& a = call.get<ManualAttributes>();
  const NodeRef local = enter(call.cotangent, a.spec, shape);
  if (a.sums || a.replicas == 1) return {local};
  return {local / static_cast<double>(a.replicas)};
}

Gradients all_reduce_gradient(const GradientCall& call) {
  if (call.get<ReduceAttributes>().reduction != Reduction::sum) {
    const Graph& graph = *call.result.graph;
    throw Error(ErrorCode::unsupported,
                fmt::format("grad of {}: found a maximum or minimum, needed a sum",
                            with_scope(graph, call.result.id)));
  }
  return {append_to(call.cotangent, Op::manual_all_reduce, {call.cotangent},
                    Attributes(call.attributes))};
}

void same_bytes_kernel(const KernelCall& call) {
  if (call.out.data == call.operands[0].data) return;
  std::memcpy(call.out.data, call.operands[0].data,
              num_bytes(call.out.box.shape(), size_bytes(call.out.dtype)));
}

void no_kernel(const KernelCall&) { assert(false && "partitioned as a move"); }

}  // namespace

std::vector<OpRow> manual_rows() {
  const OpRow::Takes<ManualAttributes> manual;
  constexpr OpTraits kAlias{.is_alias = true, .only_moves = true};
  return {{Op::enter_manual, manual, manual_type, whole_rule, enter_gradient, same_bytes_kernel,
           kAlias},
          {Op::leave_manual, manual, manual_type, whole_rule, leave_gradient, same_bytes_kernel,
           kAlias},
          {Op::manual_all_reduce, OpRow::Takes<ReduceAttributes>(), all_reduce_type, whole_rule,
           all_reduce_gradient, no_kernel}};
}

}  // namespace shardwise::detail
