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

/// Of a scan itself: it holds nothing.
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
  if (a.carries < 0 || a.xs < 0 || a.length < 0 || a.carries + a.xs > count ||
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

TensorType known_type(const TypeCall& call) { return call.wanted; }

Gradients no_own_gradient(const GradientCall& call) {
  assert(false && "derived with its results");
  return Gradients(call.operands.size());
}

void nothing_kernel(const KernelCall&) {}

void given_kernel(const KernelCall&) { assert(false && "a scan gives it"); }

/// Until it goes, nodes are appended to the body.
class OpenBody {
 public:
  OpenBody(Graph& outside, Graph& body) : outside_(outside) { outside.body = &body; }
  ~OpenBody() { outside_.body = nullptr; }
  OpenBody(const OpenBody&) = delete;
  OpenBody& operator=(const OpenBody&) = delete;

 private:
  Graph& outside_;
};

std::string list(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) {
    text += fmt::format("{}carry{}", text.empty() ? "" : ", ", path);
  }
  return text.empty() ? "none" : text;
}

/// What is wrong about the first carry that changes, or "".
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

ScanParts::ScanParts(const Node& scan)
    : attributes(std::get<ScanAttributes>(scan.attributes)),
      consts(scan.operands.size() - as_size(attributes.carries + attributes.xs)),
      carries(as_size(attributes.carries)),
      xs(as_size(attributes.xs)),
      ys(attributes.body->outputs.size() - carries) {}

TensorType result_type(const Graph& graph, const Node& node) {
  if (node.operands.size() != 1 || graph.node(node.operands[0]).op != Op::scan) {
    refuse("found no operand with several results, needed a scan");
  }
  const ScanParts scan(graph.node(node.operands[0]));
  const std::int64_t index = std::get<ResultAttributes>(node.attributes).index;
  if (index < 0 || as_size(index) >= scan.carries + scan.ys) {
    refuse(fmt::format("found index {}, needed one of {} results", index, scan.carries + scan.ys));
  }
  TensorType type = scan.body().node(scan.output(as_size(index))).type;
  if (as_size(index) >= scan.carries) {
    type.shape = stacked_shape(scan.attributes.length, type.shape);
  }
  return type;
}

Graph with_inputs_first(Graph graph) {
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
  return graph;
}

CarryAndSlices<NodeRef> record_scan(const FlatBody<NodeRef>& body,
                                    const CarryAndSlices<NodeRef>& given,
                                    const ScanOptions& options) {
  std::vector<NodeRef> operands = given.carry.tensors;
  operands.insert(operands.end(), given.slices.tensors.begin(), given.slices.tensors.end());
  if (operands.empty()) {
    throw Error(ErrorCode::invalid_argument,
                "scan: found nothing that is carried or stacked, needed a tensor");
  }
  Graph& outside = innermost(*operands.front().graph);
  const NodeRef context{&outside, 0};
  for (NodeRef& operand : operands) operand = {&outside, inside(outside, operand)};
  const std::int64_t length = scan_length(context, operands, given, options);

  Graph traced;
  traced.outside = &outside;
  traced.backward = outside.backward;
  traced.scopes.push_back(outside.scopes[as_size(outside.scope)]);
  traced.scope = 1;
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

  // What the body uses from outside comes first.
  std::vector<NodeRef> all;
  std::vector<GraphInput> ordered;
  for (const Graph::Used& used : traced.used) {
    all.push_back({&outside, used.outside});
    const auto input = std::find_if(traced.inputs.begin(), traced.inputs.end(),
                                    [&](const GraphInput& one) { return one.node == used.inside; });
    ordered.push_back(*input);
  }
  all.insert(all.end(), operands.begin(), operands.end());
  ordered.insert(ordered.end(), inputs.begin(), inputs.end());
  traced.inputs = std::move(ordered);
  for (const Leaves<NodeRef>* const leaves : {&made.carry, &made.slices}) {
    for (const NodeRef& leaf : leaves->tensors) traced.outputs.push_back(leaf.id);
  }
  traced.outside = nullptr;
  traced.used.clear();
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

std::vector<bool> results_that_depend(const Node& node, const std::vector<bool>& operands) {
  const ScanParts scan(node);
  const Graph& body = scan.body();
  const auto is_number = [&](NodeId id) { return is_floating(body.node(id).type.dtype); };
  std::vector<bool> given = operands, results(body.outputs.size(), false);
  for (bool changed = true; changed;) {
    changed = false;
    std::vector<NodeId> wrt;
    for (std::size_t i = 0; i < given.size(); ++i) {
      if (given[i] && is_number(scan.input(i))) wrt.push_back(scan.input(i));
    }
    const std::vector<bool> depends =
        depend_on(body, wrt, static_cast<NodeId>(body.nodes.size()) - 1);
    for (std::size_t r = 0; r < results.size(); ++r) {
      results[r] = depends[as_size(scan.output(r))];
      if (r >= scan.carries) continue;
      // A carry depends on what it was, if only after no trip.
      const std::size_t operand = scan.consts + r;
      if (results[r] && !given[operand]) given[operand] = changed = true;
      results[r] = given[operand] && is_number(scan.input(operand));
    }
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
          {Op::result,
           OpRow::Takes<ResultAttributes>(),
           known_type,
           whole_rule,
           no_own_gradient,
           given_kernel,
           {.only_moves = true}}};
}

}  // namespace shardwise::detail
