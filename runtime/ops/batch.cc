#include "shardwise/runtime/ops/detail/batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

/// A value of the recorded body: for all slices, stacked along dim 0, or one that they share.
struct Value {
  NodeRef node;
  bool is_stacked = false;
};

Dims after(std::int64_t first, const Dims& dims) {
  Dims all{first};
  for (const std::int64_t one : dims) all.push_back(one);
  return all;
}

Dims moved_up(Dims dims) {
  for (std::int64_t& dim : dims) ++dim;
  return dims;
}

NodeRef swapped(const NodeRef& x) { return transpose(x, 0, 1); }

/// The attributes of the op for operands with one more dim 0, which the result keeps.
class StackedAttributes {
 public:
  StackedAttributes(Op op, std::int64_t extent) : op_(op), extent_(extent) {}

  Attributes operator()(DimAttributes a) const { return DimAttributes{a.dim + 1}; }
  Attributes operator()(const DimsAttributes& a) const {
    const bool maps_dims = op_ == Op::broadcast || op_ == Op::transpose;
    return DimsAttributes{maps_dims ? after(0, moved_up(a.dims)) : moved_up(a.dims)};
  }
  Attributes operator()(const SliceAttributes& a) const {
    return SliceAttributes{after(0, a.begin), after(extent_, a.end), after(1, a.stride)};
  }
  Attributes operator()(const PadAttributes& a) const {
    return PadAttributes{after(0, a.low), after(0, a.high), after(1, a.stride), a.number};
  }
  Attributes operator()(SortAttributes a) const { return ++a.dim, a; }
  Attributes operator()(CumulativeAttributes a) const { return ++a.dim, a; }
  Attributes operator()(ScatterAttributes a) const { return ++a.dim, a; }
  Attributes operator()(const WindowAttributes& a) const {
    return WindowAttributes{after(1, a.window), after(1, a.stride), after(0, a.low),
                            after(0, a.high), after(1, a.dilation)};
  }
  template <class Other>
  Attributes operator()(const Other& a) const {
    return a;
  }

 private:
  Op op_;
  std::int64_t extent_;
};

/// Ops whose form for stacked operands differs only in the attributes.
bool has_stacked_form(Op op) {
  switch (op) {
    case Op::bitcast:
    case Op::identity:
    case Op::stop_gradient:
    case Op::optimization_barrier:
    case Op::broadcast:
    case Op::transpose:
    case Op::reshape:
    case Op::slice:
    case Op::pad:
    case Op::concatenate:
    case Op::reverse:
    case Op::reduce_sum:
    case Op::reduce_max:
    case Op::reduce_min:
    case Op::reduce_prod:
    case Op::index_of:
    case Op::cumsum:
    case Op::cumprod:
    case Op::cummax:
    case Op::cummin:
    case Op::cumlogsumexp:
    case Op::reduce_window_sum:
    case Op::reduce_window_max:
    case Op::select_and_scatter_add:
    case Op::take_along:
    case Op::scatter_add_along:
    case Op::argsort:
      return true;
    default:
      return is_elementwise(op);
  }
}

/// Appends the nodes of a graph, with one more dim 0 where a value is stacked.
class Batch {
 public:
  Batch(std::string_view operation, NodeRef context, std::int64_t extent,
        const PartitionSpec::Entry& cut)
      : operation_(operation), context_(context), extent_(extent), cut_(cut) {}

  /// The values of some nodes of the graph; those of its inputs are given.
  std::vector<Value> append_graph(const Graph& graph, std::map<NodeId, Value> values,
                                  const std::vector<NodeId>& wanted) {
    GraphBuilder& open = innermost(*context_.graph);
    const std::int32_t scope = open.scope, block = open.block, first_block = open.blocks;
    std::map<NodeId, std::vector<Value>> results;  // by scan
    for (NodeId id = 0; id < static_cast<NodeId>(graph.nodes.size()); ++id) {
      const Node& node = graph.node(id);
      if (node.op == Op::input) continue;
      open.scope = scope_like(open, graph.scopes[as_size(node.scope)]);
      if (block == 0 && node.block != 0) {
        open.block = first_block + node.block;
        open.blocks = std::max(open.blocks, open.block);
      }
      std::vector<Value> operands;
      for (const NodeId operand : node.operands) {
        if (!has_bodies(graph.node(operand).op)) operands.push_back(values.at(operand));
      }
      if (node.op == Op::scan) {
        results[id] = append_scan(node, operands);
      } else if (const auto scan = results.find(node.operands.empty() ? -1 : node.operands[0]);
                 node.op == Op::result && scan != results.end()) {
        values[id] = scan->second[as_size(std::get<ResultAttributes>(node.attributes).index)];
      } else {
        values[id] = append_node(node, operands);
        Node& made = open.node(values[id].node.id);
        made.is_saved = made.is_saved || node.is_saved;
        if (node.mark) made.mark = values[id].is_stacked ? stacked_mark(node) : *node.mark;
      }
      open.block = block;
    }
    open.scope = scope;
    std::vector<Value> made;
    made.reserve(wanted.size());
    for (const NodeId id : wanted) made.push_back(values.at(id));
    return made;
  }

  NodeRef stacked(const Value& value) const {
    if (value.is_stacked) return value.node;
    const Shape& shape = value.node.type().shape;
    return broadcast(value.node, stacked_shape(extent_, shape), moved_up(all_dims(shape.size())));
  }

 private:
  static std::int32_t scope_like(GraphBuilder& open, const std::string& path) {
    const auto at = std::find(open.scopes.begin(), open.scopes.end(), path);
    const auto number = static_cast<std::int32_t>(at - open.scopes.begin());
    if (at == open.scopes.end()) open.scopes.push_back(path);
    return number;
  }

  PartitionSpec stacked_mark(const Node& node) const {
    std::vector<PartitionSpec::Entry> entries{cut_};
    for (std::size_t dim = 0; dim < node.mark->rank(); ++dim) entries.push_back((*node.mark)[dim]);
    return PartitionSpec(std::move(entries));
  }

  [[noreturn]] void refuse_op(const Node& node, std::string_view why = "") const {
    const GraphBuilder& open = innermost(*context_.graph);
    throw Error(
        ErrorCode::unsupported,
        fmt::format("{}{}: found {}{}, needed an operation that works on all slices at once",
                    operation_, in_scope(open, open.scope), name(node.op), why));
  }

  Value append_node(const Node& node, const std::vector<Value>& operands) const {
    const auto is_stacked = [](const Value& value) { return value.is_stacked; };
    TensorType type = node.type;
    std::vector<NodeRef> nodes;
    if (std::none_of(operands.begin(), operands.end(), is_stacked)) {
      if (has_bodies(node.op) || node.op == Op::result) refuse_op(node);
      for (const Value& operand : operands) nodes.push_back(operand.node);
      return {append(context_, node.op, std::span<const NodeRef>(nodes), node.attributes, type)};
    }
    if (node.op == Op::dot_general) return {product(node, operands), true};
    if (node.op == Op::take) return {rows(node, operands), true};
    if (!has_stacked_form(node.op)) refuse_op(node);
    for (const Value& operand : operands) nodes.push_back(stacked(operand));
    type.shape = stacked_shape(extent_, type.shape);
    return {append(context_, node.op, std::span<const NodeRef>(nodes),
                   std::visit(StackedAttributes(node.op, extent_), node.attributes), type),
            true};
  }

  NodeRef product(const Node& node, const std::vector<Value>& operands) const {
    auto a = std::get<DotAttributes>(node.attributes);
    char letter = 'a';
    while ((a.equation.lhs + a.equation.rhs).find(letter) != std::string::npos) ++letter;
    if (operands[0].is_stacked) a.equation.lhs.insert(0, 1, letter);
    if (operands[1].is_stacked) a.equation.rhs.insert(0, 1, letter);
    a.equation.result.insert(0, 1, letter);
    return append_to(context_, node.op, {operands[0].node, operands[1].node}, a);
  }

  NodeRef rows(const Node& node, const std::vector<Value>& operands) const {
    const std::int64_t dim = std::get<DimAttributes>(node.attributes).dim;
    const Value &table = operands[0], &ids = operands[1];
    if (table.is_stacked && ids.is_stacked) refuse_op(node, " of a table and ids for each slice");
    if (table.is_stacked) return take(table.node, ids.node, dim + 1);
    const NodeRef made = take(table.node, ids.node, dim);
    Dims order = all_dims(made.type().shape.size());
    std::rotate(order.begin(), order.begin() + dim, order.begin() + dim + 1);
    return dim == 0 ? made : transpose(made, order);
  }

  /// A loop over the same trips, each for all slices.
  std::vector<Value> append_scan(const Node& node, const std::vector<Value>& operands) {
    const BodyParts parts(node);
    CarryAndSlices<NodeRef> given;
    for (std::size_t i = parts.consts; i < parts.inputs(); ++i) {
      if (i < parts.first_x()) {
        given.carry.tensors.push_back(stacked(operands[i]));
      } else {
        const Value& x = operands[i];
        given.slices.tensors.push_back(x.is_stacked ? swapped(x.node) : x.node);
      }
    }
    given.carry.paths.resize(parts.carries);
    given.slices.paths.resize(parts.xs);
    std::vector<bool> is_stacked(parts.ys, false);
    const FlatBody<NodeRef> body = [&](const std::vector<NodeRef>& carry,
                                       const std::vector<NodeRef>& slices) {
      std::map<NodeId, Value> values;
      for (std::size_t i = 0; i < parts.inputs(); ++i) {
        values[parts.input(i)] = i < parts.consts ? operands[i]
                                 : i < parts.first_x()
                                     ? Value{carry[i - parts.consts], true}
                                     : Value{slices[i - parts.first_x()], operands[i].is_stacked};
      }
      const std::vector<Value> made = append_graph(parts.body(), values, parts.body().outputs);
      CarryAndSlices<NodeRef> next{{{}, given.carry.paths}, {}};
      for (std::size_t r = 0; r < made.size(); ++r) {
        if (r < parts.carries) {
          next.carry.tensors.push_back(stacked(made[r]));
        } else {
          next.slices.tensors.push_back(made[r].node);
          is_stacked[r - parts.carries] = made[r].is_stacked;
        }
      }
      return next;
    };
    const CarryAndSlices<NodeRef> made =
        record_scan(body, given, {.length = parts.length, .reverse = parts.reverse});
    std::vector<Value> results;
    for (const NodeRef& carry : made.carry.tensors) results.push_back({carry, true});
    for (std::size_t y = 0; y < parts.ys; ++y) {
      const NodeRef& stack = made.slices.tensors[y];
      results.push_back({is_stacked[y] ? swapped(stack) : stack, is_stacked[y]});
    }
    return results;
  }

  std::string_view operation_;
  NodeRef context_;
  std::int64_t extent_;
  const PartitionSpec::Entry& cut_;
};

Leaves<TensorType> types_of(const Leaves<NodeRef>& leaves) {
  Leaves<TensorType> types{{}, leaves.paths};
  for (const NodeRef& leaf : leaves.tensors) types.tensors.push_back(leaf.type());
  return types;
}

}  // namespace

BatchedBody::BatchedBody(std::string_view operation, GraphBuilder& outside,
                         const FlatBody<NodeRef>& body, const CarryAndSlices<TensorType>& arguments)
    : operation_(operation), outside_(&outside), body_(new_body(outside)) {
  const auto inputs = [&](const Leaves<TensorType>& leaves) {
    std::vector<NodeRef> nodes;
    for (std::size_t i = 0; i < leaves.tensors.size(); ++i) {
      nodes.push_back({&body_, append_input(body_, leaves.tensors[i], leaves.paths[i])});
    }
    return nodes;
  };
  const std::vector<NodeRef> carry = inputs(arguments.carry), slices = inputs(arguments.slices);
  CarryAndSlices<NodeRef> made = [&] {
    const OpenBody open(outside, body_);
    return body(carry, slices);
  }();
  for (Leaves<NodeRef>* const leaves : {&made.carry, &made.slices}) {
    for (NodeRef& leaf : leaves->tensors) {
      leaf = {&body_, inside(body_, leaf)};
      made_.push_back(leaf.id);
    }
  }
  results_ = {types_of(made.carry), types_of(made.slices)};
}

CarryAndSlices<NodeRef> BatchedBody::append_all(const std::vector<NodeRef>& carry,
                                                const std::vector<NodeRef>& slices,
                                                const PartitionSpec::Entry& cut) const {
  std::vector<NodeRef> arguments = carry;
  arguments.insert(arguments.end(), slices.begin(), slices.end());
  const NodeRef& context = arguments.front();
  Batch batch(operation_, context, context.type().shape[0], cut);
  std::map<NodeId, Value> values;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    values[body_.inputs[i].node] = {arguments[i], true};
  }
  GraphBuilder& open = innermost(*context.graph);
  for (const GraphBuilder::Used& used : body_.used) {
    values[used.inside] = {{&open, inside(open, {outside_, used.outside})}};
  }
  CarryAndSlices<NodeRef> made;
  const std::size_t carries = results_.carry.tensors.size();
  for (const Value& value : batch.append_graph(body_, std::move(values), made_)) {
    std::vector<NodeRef>& next =
        made.carry.tensors.size() < carries ? made.carry.tensors : made.slices.tensors;
    next.push_back(batch.stacked(value));
  }
  return made;
}

PartitionSpec::Entry cut_of_dim_0(const std::vector<NodeRef>& tensors) {
  for (const NodeRef& tensor : tensors) {
    const std::optional<PartitionSpec>& mark = tensor.graph->node(tensor.id).mark;
    if (mark && mark->rank() > 0) return (*mark)[0];
  }
  return {};
}

}  // namespace shardwise::detail
