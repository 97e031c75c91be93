#include <fmt/format.h>

#include <cassert>
#include <cstring>

#include "shardwise/runtime/ops/detail/rules.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

TensorType manual_type(const TypeCall& call) {
  need_operands(call, 1);
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

NodeRef leave(const NodeRef& x, const std::string& spec, const Shape& shape, double summed) {
  return append_to(x, Op::leave_manual, {x}, {.dims = {1}, .number = summed, .text = spec},
                   {x.type().dtype, shape});
}

NodeRef enter(const NodeRef& x, const std::string& spec, const Shape& shape) {
  return append_to(x, Op::enter_manual, {x}, {.text = spec}, {x.type().dtype, shape});
}

/// Each replica of a shard has a part of the gradient.
Gradients enter_gradient(const GradientCall& call) {
  const Shape shape = call.operands[0].type().shape;
  return {leave(call.cotangent, call.attributes.text, shape, 1)};
}

/// Of equal replicas each has an equal share in the result.
Gradients leave_gradient(const GradientCall& call) {
  const Shape shape = call.operands[0].type().shape;
  const NodeRef local = enter(call.cotangent, call.attributes.text, shape);
  if (!call.attributes.number.is_zero() || call.attributes.dims[0] == 1) return {local};
  return {local / static_cast<double>(call.attributes.dims[0])};
}

Gradients all_reduce_gradient(const GradientCall& call) {
  if (call.attributes.number.as_double() != static_cast<double>(Reduction::sum)) {
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
  return {{Op::enter_manual, manual_type, whole_rule, enter_gradient, same_bytes_kernel},
          {Op::leave_manual, manual_type, whole_rule, leave_gradient, same_bytes_kernel},
          {Op::manual_all_reduce, all_reduce_type, whole_rule, all_reduce_gradient, no_kernel}};
}

}  // namespace shardwise::detail
