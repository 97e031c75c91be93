#include "shardwise/runtime/ops/build.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/runtime/ops/detail/rules.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

/// "add(%0 f32[2, 3], %1 f32[4]) in \"layer0\": " and the text.
[[noreturn]] void fail(const GraphBuilder& graph, ErrorCode code, std::string_view operation,
                       std::span<const NodeRef> operands, const std::string& text) {
  constexpr std::size_t kMostShown = 16;
  std::string list;
  for (const NodeRef& operand : operands.first(std::min(operands.size(), kMostShown))) {
    list +=
        fmt::format("{}%{} {}", list.empty() ? "" : ", ", operand.id, to_string(operand.type()));
  }
  if (operands.size() > kMostShown)
    list += fmt::format(" and {} more", operands.size() - kMostShown);
  throw Error(code,
              fmt::format("{}({}){}: {}", operation, list, in_scope(graph, graph.scope), text));
}

/// Rounds the number to the dtype's value.
void hold_number(Scalar& number, DType dtype) {
  const std::optional<Scalar> held = number.of(dtype);
  if (!held) {
    detail::refuse(fmt::format("found the number {}, needed one that {} has exactly",
                               number.to_string(), name(dtype)));
  }
  number = *held;
}

void need_computed(DType dtype) {
  if (!is_computed(dtype)) detail::refuse_dtype(dtype, "a type that is computed with");
}

}  // namespace

namespace detail {

GraphBuilder& innermost(GraphBuilder& graph) {
  GraphBuilder* inner = &graph;
  while (inner->body != nullptr) inner = inner->body;
  return *inner;
}

GraphBuilder new_body(GraphBuilder& outside) {
  GraphBuilder body;
  body.outside = &outside;
  body.backward = outside.backward;
  body.scopes.push_back(outside.scopes[as_size(outside.scope)]);
  body.scope = 1;
  return body;
}

NodeId inside(GraphBuilder& graph, const NodeRef& node) {
  if (node.graph == &graph) return node.id;
  if (graph.outside == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("use %{} of {}: found nodes of two graphs, needed those of one",
                            node.id, to_string(node.type())));
  }
  const NodeId outside = inside(*graph.outside, node);
  for (const GraphBuilder::Used& used : graph.used) {
    if (used.outside == outside) return used.inside;
  }
  const NodeId id = append_body_input(graph, {graph.outside, outside}, "");
  graph.used.push_back({outside, id});
  return id;
}

NodeId append_body_input(GraphBuilder& body, const NodeRef& from, std::string_view label,
                         const std::optional<TensorType>& type) {
  for (const GraphInput& input : from.graph->inputs) {
    if (input.node != from.id) continue;
    return append_input(body, type.value_or(from.type()), label.empty() ? input.label : label,
                        input.kind);
  }
  return append_input(body, type.value_or(from.type()), label);
}

}  // namespace detail

NodeRef append(const NodeRef& context, Op op, std::span<const NodeRef> operands,
               Attributes attributes, const TensorType& wanted) {
  GraphBuilder& graph = detail::innermost(*context.graph);
  Node node{op, {}, {}, std::move(attributes), {}, graph.scope, graph.backward};
  node.operands.reserve(operands.size());
  for (const NodeRef& operand : operands) node.operands.push_back(detail::inside(graph, operand));
  // Few ops have more than three operands; a vector for each would be half of what tracing costs.
  std::array<TensorType, 3> few;
  std::vector<TensorType> many;
  std::span<const TensorType> types(few.data(), std::min(operands.size(), few.size()));
  if (operands.size() > few.size()) {
    many = operand_types(graph, node);
    types = many;
  } else {
    for (std::size_t i = 0; i < operands.size(); ++i) few[i] = graph.node(node.operands[i]).type;
  }
  const bool reads_manual = std::any_of(node.operands.begin(), node.operands.end(),
                                        [&](NodeId operand) { return graph.node(operand).manual; });
  node.manual = op == Op::enter_manual || (reads_manual && op != Op::leave_manual);
  try {
    if (reads_manual && op == Op::enter_manual) {
      detail::refuse("found a tensor of a manual region, needed one that is in none");
    }
    if (reads_manual && has_bodies(op)) {
      detail::refuse("found a tensor of a manual region, needed one that is in none");
    }
    if (!reads_manual && (op == Op::leave_manual || op == Op::manual_all_reduce)) {
      detail::refuse("found a tensor that is in no manual region, needed one of a region");
    }
    num_bytes(wanted.shape, 1);
    if (!row(op).takes(node.attributes)) {
      detail::refuse(fmt::format("found the attributes{}, needed those of the op",
                                 to_string(node.attributes)));
    }
    const bool computes = !row(op).traits().only_moves;
    for (const TensorType& type : types) {
      if (computes) need_computed(type.dtype);
    }
    node.type = op == Op::result ? detail::result_type(graph, node)
                                 : row(op).type({op, types, node.attributes, wanted});
    if (computes) need_computed(node.type.dtype);
    if (auto* const a = std::get_if<NumberAttributes>(&node.attributes)) {
      hold_number(a->number, node.type.dtype);
    }
    if (auto* const a = std::get_if<PadAttributes>(&node.attributes)) {
      hold_number(a->number, node.type.dtype);
    }
    num_bytes(node.type.shape, size_bytes(node.type.dtype));
  } catch (const Error& error) {
    fail(graph, error.code(), name(op), operands, error.what());
  }
  node.block = graph.backward ? 0 : graph.block;
  node.is_saved = graph.policy.save_products && row(op).traits().is_product;
  graph.nodes.push_back(std::move(node));
  return {&graph, static_cast<NodeId>(graph.nodes.size()) - 1};
}

void refuse(const NodeRef& context, std::string_view operation, std::span<const NodeRef> operands,
            const std::string& found_and_needed) {
  fail(*context.graph, ErrorCode::invalid_argument, operation, operands, found_and_needed);
}

NodeId append_input(GraphBuilder& graph, const TensorType& type, std::string_view label,
                    MemoryKind kind) {
  num_bytes(type.shape, size_bytes(type.dtype));
  graph.nodes.push_back({Op::input, type, {}, {}, {}, graph.scope, graph.backward});
  const NodeId id = static_cast<NodeId>(graph.nodes.size()) - 1;
  graph.inputs.push_back({id, std::string(label), kind});
  return id;
}

std::optional<Shape> broadcast_shape(const Shape& a, const Shape& b) {
  Shape shape = Dims::filled(std::max(a.size(), b.size()), 1);
  for (const Shape* const from : {&a, &b}) {
    for (std::size_t i = 0; i < from->size(); ++i) {
      std::int64_t& extent = shape[shape.size() - 1 - i];
      const std::int64_t other = (*from)[from->size() - 1 - i];
      if (extent == 1) {
        extent = other;
      } else if (other != 1 && other != extent) {
        return std::nullopt;
      }
    }
  }
  return shape;
}

Shape complete_shape(Shape shape, const Shape& of) {
  std::int64_t* open = nullptr;
  std::int64_t others = 1;
  for (std::int64_t& extent : shape) {
    if (extent == -1 && open == nullptr) {
      open = &extent;
    } else if (extent < 1 || __builtin_mul_overflow(others, extent, &others)) {
      return shape;
    }
  }
  if (open != nullptr && num_elements(of) % others == 0) *open = num_elements(of) / others;
  return shape;
}

}  // namespace shardwise
