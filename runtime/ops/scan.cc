#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>

#include "shardwise/runtime/ops/control.h"
#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/runtime/ops/detail/pull_back.h"
#include "shardwise/runtime/ops/detail/rules.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

/// The type of a scan itself, which has no elements.
const TensorType kNothing{DType::boolean, {0}};

void need_type(const TensorType& found, const TensorType& needed, const std::string& what) {
  if (found == needed) return;
  refuse(fmt::format("found {} of {}, needed {}", what, to_string(found), to_string(needed)));
}

TensorType scan_type(const TypeCall& call) {
  const auto& a = call.get<ScanAttributes>();
  const auto count = static_cast<std::int64_t>(call.operands.size());
  if (a.body == nullptr) refuse("found no body, needed one");
  const Graph& body = *a.body;
  if (a.carries < 0 || a.xs < 0 || a.length < 0 || a.carries > count || a.xs > count - a.carries ||
      body.inputs.size() != call.operands.size() || body.outputs.size() < as_size(a.carries)) {
    refuse(
        fmt::format("found {} operands for a body of {} inputs and {} outputs, with {} carries, "
                    "{} xs and length {}, needed an operand for each input and a result for "
                    "each carry",
                    count, body.inputs.size(), body.outputs.size(), a.carries, a.xs, a.length));
  }
  const std::int64_t consts = count - a.carries - a.xs;
  for (std::int64_t i = 0; i < count; ++i) {
    const TensorType& found = body.node(body.inputs[as_size(i)].node).type;
    TensorType needed = call.operands[as_size(i)];
    std::string what = fmt::format("a body's input {}", i);
    if (i >= consts + a.carries) {
      if (needed.shape.empty() || needed.shape[0] != a.length) {
        refuse(fmt::format("found {} to be stacked, needed {} slices along dim 0",
                           to_string(needed), a.length));
      }
      needed.shape = slice_shape(needed.shape);
    } else if (i >= consts) {
      const NodeId given = body.outputs[as_size(i - consts)];
      need_type(body.node(given).type, needed,
                fmt::format("a body that gives carry {} as one", i - consts));
    }
    need_type(found, needed, what);
  }
  return kNothing;
}

TensorType cond_type(const TypeCall& call) {
  const auto& a = call.get<CondAttributes>();
  if (call.operands.empty() || !(call.operands[0] == TensorType{DType::boolean, {}})) {
    refuse(fmt::format("found {} to decide by, needed bool[]",
                       call.operands.empty() ? "nothing" : to_string(call.operands[0])));
  }
  if (a.body == nullptr || a.otherwise == nullptr) refuse("found no body, needed two");
  for (const Graph* const body : {a.body.get(), a.otherwise.get()}) {
    if (body->inputs.size() + 1 != call.operands.size()) {
      refuse(
          fmt::format("found {} operands for a body of {} inputs, needed the scalar and one for "
                      "each",
                      call.operands.size(), body->inputs.size()));
    }
    for (std::size_t i = 0; i < body->inputs.size(); ++i) {
      need_type(body->node(body->inputs[i].node).type, call.operands[i + 1],
                fmt::format("a body's input {}", i));
    }
  }
  if (a.body->outputs.size() != a.otherwise->outputs.size()) {
    refuse(fmt::format("found bodies of {} and {} results, needed as many", a.body->outputs.size(),
                       a.otherwise->outputs.size()));
  }
  for (std::size_t r = 0; r < a.body->outputs.size(); ++r) {
    need_type(a.otherwise->node(a.otherwise->outputs[r]).type,
              a.body->node(a.body->outputs[r]).type,
              fmt::format("a second body that gives result {} as one", r));
  }
  return kNothing;
}

TensorType known_type(const TypeCall& call) { return call.wanted; }

Gradients no_own_gradient(const GradientCall& call) {
  assert(false && "derived with its results");
  return Gradients(call.operands.size());
}

void nothing_kernel(const KernelCall&) {}

void no_result_kernel(const KernelCall&) { assert(false && "a scan gives it"); }

std::string list(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) {
    text += fmt::format("{}carry{}", text.empty() ? "" : ", ", path);
  }
  return text.empty() ? "none" : text;
}

/// Describes the first difference between a carry and the next one, or "".
std::string changed_carry(const CarryAndSlices<NodeRef>& given,
                          const CarryAndSlices<NodeRef>& made) {
  if (made.carry.paths != given.carry.paths) {
    return fmt::format("found a body that gives {}, needed {} as it gets", list(made.carry.paths),
                       list(given.carry.paths));
  }
  for (std::size_t i = 0; i < given.carry.tensors.size(); ++i) {
    const TensorType &found = made.carry.tensors[i].type(), &needed = given.carry.tensors[i].type();
    if (found == needed) continue;
    return fmt::format("found a body that gives carry{} as {}, needed {} as it gets it",
                       given.carry.paths[i], to_string(found), to_string(needed));
  }
  return "";
}

std::int64_t scan_length(const NodeRef& context, std::span<const NodeRef> operands,
                         const CarryAndSlices<NodeRef>& given, const ScanOptions& options) {
  std::optional<std::int64_t> length = options.length;
  std::string from = "as the length says";
  if (length && *length < 0) {
    refuse(context, name(Op::scan), operands,
           fmt::format("found length {}, needed 0 or more", *length));
  }
  for (std::size_t i = 0; i < given.slices.tensors.size(); ++i) {
    const TensorType& type = given.slices.tensors[i].type();
    if (type.shape.empty() || (length && type.shape[0] != *length)) {
      const std::string needed =
          length ? fmt::format("{} along dim 0, {}", *length, from) : "a dim to go along";
      refuse(context, name(Op::scan), operands,
             fmt::format("found xs{} of {}, needed {}", given.slices.paths[i], to_string(type),
                         needed));
    }
    if (length) continue;
    length = type.shape[0];
    from = "as xs" + given.slices.paths[i] + " has";
  }
  if (!length) {
    refuse(context, name(Op::scan), operands,
           "found nothing stacked and no length, needed one of them");
  }
  return *length;
}

}  // namespace

Shape slice_shape(const Shape& stacked) {
  return Shape(std::span(stacked.begin() + 1, stacked.end()));
}

Shape stacked_shape(std::int64_t length, const Shape& slice) {
  Shape shape{length};
  for (const std::int64_t extent : slice) shape.push_back(extent);
  return shape;
}

BodyParts::BodyParts(const Node& node, Which which) {
  if (const auto* const cond = std::get_if<CondAttributes>(&node.attributes)) {
    graph = which == Which::first ? cond->body : cond->otherwise;
    skip = 1;
    carries = xs = 0;
  } else {
    const auto& scan = std::get<ScanAttributes>(node.attributes);
    graph = scan.body;
    length = scan.length;
    reverse = scan.reverse;
    is_loop = true;
    carries = as_size(scan.carries);
    xs = as_size(scan.xs);
  }
  consts = node.operands.size() - skip - carries - xs;
  ys = graph->outputs.size() - carries;
}

bool has_otherwise(const Node& node) { return node.op == Op::cond; }

TensorType result_type(const Graph& graph, const Node& node) {
  if (node.operands.size() != 1 || !has_bodies(graph.node(node.operands[0]).op)) {
    refuse("found no operand with several results, needed a scan or cond");
  }
  const BodyParts parts(graph.node(node.operands[0]));
  const std::int64_t index = std::get<ResultAttributes>(node.attributes).index;
  const std::size_t results = parts.carries + parts.ys;
  if (index < 0 || as_size(index) >= results) {
    refuse(fmt::format("found index {}, needed one of {} results", index, results));
  }
  TensorType type = parts.body().node(parts.output(as_size(index))).type;
  if (parts.is_stacked(as_size(index))) type.shape = stacked_shape(parts.length, type.shape);
  return type;
}

Graph with_inputs_first(Graph&& graph) {
  std::vector<NodeId> now(graph.nodes.size(), -1);
  std::vector<Node> nodes;
  nodes.reserve(graph.nodes.size());
  const auto move = [&](NodeId id) {
    now[as_size(id)] = static_cast<NodeId>(nodes.size());
    nodes.push_back(std::move(graph.node(id)));
  };
  for (const GraphInput& input : graph.inputs) move(input.node);
  for (std::size_t id = 0; id < now.size(); ++id) {
    if (now[id] < 0) move(static_cast<NodeId>(id));
  }
  for (Node& node : nodes) {
    for (NodeId& operand : node.operands) operand = now[as_size(operand)];
  }
  for (GraphInput& input : graph.inputs) input.node = now[as_size(input.node)];
  for (NodeId& output : graph.outputs) output = now[as_size(output)];
  graph.nodes = std::move(nodes);
  return std::move(graph);
}

namespace {

/// The operands of a scan: values that the body uses from outside come before the given ones. The
/// body's inputs get the same order; `inputs` are those of the given operands.
std::vector<NodeRef> with_used_first(GraphBuilder& outside, GraphBuilder& body,
                                     const std::vector<NodeRef>& operands,
                                     const std::vector<GraphInput>& inputs) {
  std::vector<NodeRef> all;
  std::vector<GraphInput> ordered;
  for (const GraphBuilder::Used& used : body.used) {
    all.push_back({&outside, used.outside});
    const auto input = std::find_if(body.inputs.begin(), body.inputs.end(),
                                    [&](const GraphInput& one) { return one.node == used.inside; });
    ordered.push_back(*input);
  }
  all.insert(all.end(), operands.begin(), operands.end());
  ordered.insert(ordered.end(), inputs.begin(), inputs.end());
  body.inputs = std::move(ordered);
  return all;
}

}  // namespace

CarryAndSlices<NodeRef> record_scan(const FlatBody<NodeRef>& body,
                                    const CarryAndSlices<NodeRef>& given,
                                    const ScanOptions& options) {
  std::vector<NodeRef> operands = given.carry.tensors;
  operands.insert(operands.end(), given.slices.tensors.begin(), given.slices.tensors.end());
  if (operands.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "scan: found nothing that is carried or stacked, needed a tensor");
  }
  GraphBuilder& outside = innermost(*operands.front().graph);
  const NodeRef context{&outside, 0};
  for (NodeRef& operand : operands) operand = {&outside, inside(outside, operand)};
  const std::int64_t length = scan_length(context, operands, given, options);

  GraphBuilder traced = new_body(outside);
  std::vector<NodeRef> carry, slices;
  std::vector<GraphInput> inputs;
  const std::size_t carries = given.carry.tensors.size();
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const bool is_carry = i < carries;
    TensorType type = operands[i].type();
    if (!is_carry) type.shape = slice_shape(type.shape);
    const std::string label =
        is_carry ? "carry" + given.carry.paths[i] : "x" + given.slices.paths[i - carries];
    const NodeId id = is_carry ? append_input(traced, type, label)
                               : append_body_input(traced, operands[i], label, type);
    (is_carry ? carry : slices).push_back({&traced, id});
    inputs.push_back(traced.inputs.back());
  }
  CarryAndSlices<NodeRef> made = [&] {
    const OpenBody open(outside, traced);
    return body(carry, slices);
  }();
  for (Leaves<NodeRef>* const leaves : {&made.carry, &made.slices}) {
    for (NodeRef& leaf : leaves->tensors) leaf = {&traced, inside(traced, leaf)};
  }
  const std::string changed = changed_carry(given, made);
  if (!changed.empty()) refuse(context, name(Op::scan), operands, changed);

  const std::vector<NodeRef> all = with_used_first(outside, traced, operands, inputs);
  for (const Leaves<NodeRef>* const leaves : {&made.carry, &made.slices}) {
    for (const NodeRef& leaf : leaves->tensors) traced.outputs.push_back(leaf.id);
  }
  const ScanAttributes attributes{
      std::make_shared<const Graph>(with_inputs_first(std::move(traced))), length,
      static_cast<std::int64_t>(carries), std::ssize(slices), options.reverse};
  const std::size_t results = attributes.body->outputs.size();
  const NodeRef scan = append(context, Op::scan, std::span<const NodeRef>(all), attributes);
  CarryAndSlices<NodeRef> given_back;
  for (std::size_t i = 0; i < results; ++i) {
    const NodeRef result =
        append_to(scan, Op::result, {scan}, ResultAttributes{static_cast<std::int64_t>(i)});
    (i < carries ? given_back.carry : given_back.slices).tensors.push_back(result);
  }
  return given_back;
}

namespace {

std::vector<bool> results_of_body(const BodyParts& parts, std::vector<bool> given) {
  const Graph& body = parts.body();
  const auto is_number = [&](NodeId id) { return is_floating(body.node(id).type.dtype); };
  std::vector<bool> results(body.outputs.size(), false);
  for (bool changed = true; changed;) {
    changed = false;
    std::vector<NodeId> wrt;
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (given[i] && is_number(parts.input(i))) wrt.push_back(parts.input(i));
    }
    const std::vector<bool> depends =
        depend_on(body, wrt, static_cast<NodeId>(body.nodes.size()) - 1);
    for (std::size_t r = 0; r < results.size(); ++r) {
      results[r] = depends[as_size(parts.output(r))];
      if (r >= parts.carries) continue;
      // A carry depends on its initial value: after no trip it equals that.
      const std::size_t operand = parts.consts + r;
      if (results[r] && !given[operand]) given[operand] = changed = true;
      results[r] = given[operand] && is_number(parts.input(operand));
    }
  }
  return results;
}

}  // namespace

std::vector<bool> results_that_depend(const Node& node, const std::vector<bool>& operands) {
  const BodyParts parts(node);
  const std::vector<bool> given(operands.begin() + static_cast<std::ptrdiff_t>(parts.skip),
                                operands.end());
  std::vector<bool> results = results_of_body(parts, given);
  if (has_otherwise(node)) {
    const std::vector<bool> others =
        results_of_body(BodyParts(node, BodyParts::Which::otherwise), given);
    for (std::size_t r = 0; r < results.size(); ++r) results[r] = results[r] || others[r];
  }
  return results;
}

std::vector<OpRow> control_rows() {
  return {{Op::scan,
           OpRow::Takes<ScanAttributes>(),
           scan_type,
           whole_rule,
           no_own_gradient,
           nothing_kernel,
           {.only_moves = true}},
          {Op::cond,
           OpRow::Takes<CondAttributes>(),
           cond_type,
           whole_rule,
           no_own_gradient,
           nothing_kernel,
           {.only_moves = true}},
          {Op::result,
           OpRow::Takes<ResultAttributes>(),
           known_type,
           whole_rule,
           no_own_gradient,
           no_result_kernel,
           {.only_moves = true}}};
}

}  // namespace shardwise::detail
