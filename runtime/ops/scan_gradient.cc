#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/runtime/ops/detail/pull_back.h"
#include "shardwise/runtime/ops/functions.h"

namespace shardwise::detail {
namespace {

/// A body's nodes that do not change from time to time, up to `last`.
std::vector<bool> invariant(const BodyParts& scan, NodeId last) {
  const Graph& body = scan.body();
  std::vector<bool> varies(as_size(last) + 1, false);
  for (std::size_t i = scan.consts; i < body.inputs.size(); ++i) {
    varies[as_size(scan.input(i))] = true;
  }
  for (NodeId id = 0; id <= last; ++id) {
    for (const NodeId operand : body.node(id).operands) {
      if (varies[as_size(operand)]) varies[as_size(id)] = true;
    }
  }
  varies.flip();
  return varies;
}

/// True for nodes that are recomputed for a gradient rather than kept: they take as much memory as
/// their operands, or more.
bool is_spread(const Node& node) {
  return node.op == Op::broadcast || (row(node.op).traits().is_alias && !node.manual);
}

/// The gradient of a scan while it is made. The gradient of the body is first appended to the body
/// in `body_`; then the two are separated.
class ScanGradient {
 public:
  explicit ScanGradient(const BodiesGradientCall& call)
      : call_(call),
        graph_(*call.node.graph),
        node_(graph_.node(call.node.id)),
        scan_(node_),
        body_(scan_.body()),
        forward_(scan_.body()),
        last_(static_cast<NodeId>(body_.nodes.size()) - 1),
        is_invariant_(invariant(scan_, last_)) {}

  Gradients run() {
    find_active();
    add_inputs();
    std::vector<NodeId> wrt;
    for (const std::size_t operand : derived_) wrt.push_back(scan_.input(operand));
    cotangents_.resize(body_.nodes.size());
    const std::vector<NodeId> pulled = pull_back(body_, last_, std::move(cotangents_), wrt);
    choose_outputs(pulled);
    if (outputs_.empty()) return Gradients(call_.operands.size());
    take_apart();
    return append_scan();
  }

 private:
  /// An input of the gradient's body, and its value outside.
  struct Input {
    NodeId node;  ///< in made_
    NodeRef from;
  };
  /// An output of the gradient's body, and the operand whose gradient it is.
  struct Output {
    NodeId node;  ///< in body_
    std::size_t operand;
  };

  const TensorType& input_type(std::size_t operand) const {
    return body_.node(scan_.input(operand)).type;
  }

  /// Finds the operands that the body must be derived with respect to.
  void find_active() {
    const std::vector<bool> results = results_that_depend(node_, call_.wanted);
    for (std::size_t i = 0; i < call_.operands.size(); ++i) {
      const bool is_carry = i >= scan_.consts && i < scan_.first_x();
      const bool is_active = is_carry ? results[i - scan_.consts] : call_.wanted[i];
      if (is_active && is_floating(input_type(i).dtype)) derived_.push_back(i);
    }
    result_depends_ = results;
  }

  /// A gradient that comes from outside, with its place among the nodes of body_.
  NodeRef add_input(const TensorType& type, const std::string& label, const NodeRef& from,
                    std::vector<Input>& list) {
    const NodeId id = append_input(body_, type, label);
    list.push_back({id, from});
    return {&body_, id};
  }

  void add_cotangent(NodeId node, const NodeRef& cotangent) {
    if (cotangents_.size() <= as_size(node)) cotangents_.resize(as_size(node) + 1);
    std::optional<NodeRef>& sum = cotangents_[as_size(node)];
    sum = sum ? *sum + cotangent : cotangent;
  }

  /// Carried values are the gradients of carries, and the sums of the gradients of values used from
  /// outside; stacked values are the gradients of the ys.
  void add_inputs() {
    const RecordsBackward backward(body_);
    for (const std::size_t operand : derived_) {
      if (operand >= scan_.first_x()) continue;
      const bool is_carry = operand >= scan_.consts;
      const TensorType type = input_type(operand);
      NodeRef from{};
      if (is_carry && call_.cotangents[operand - scan_.consts]) {
        from = *call_.cotangents[operand - scan_.consts];
      } else {
        from = full_like(call_.operands[operand], 0);
      }
      const std::string label = body_.inputs[operand].label;
      const NodeRef given = add_input(type, "gradient of " + label, from, carried_);
      // A sum continues from its carried value.
      add_cotangent(is_carry ? scan_.output(operand - scan_.consts) : scan_.input(operand), given);
    }
    for (std::size_t y = 0; y < scan_.ys; ++y) {
      const std::size_t result = scan_.carries + y;
      if (!call_.cotangents[result] || !result_depends_[result]) continue;
      const NodeRef given =
          add_input(body_.node(scan_.output(result)).type, fmt::format("gradient of y{}", y),
                    *call_.cotangents[result], stacked_);
      add_cotangent(scan_.output(result), given);
    }
  }

  void choose_outputs(const std::vector<NodeId>& pulled) {
    std::vector<Input> carried;
    std::vector<Output> stacked;
    std::size_t next = 0;
    for (std::size_t i = 0; i < derived_.size(); ++i) {
      const std::size_t operand = derived_[i];
      NodeId gradient = pulled[i];
      if (operand >= scan_.first_x()) {
        if (gradient >= 0) stacked.push_back({gradient, operand});
        continue;
      }
      const Input input = carried_[next++];
      const bool is_carry = operand >= scan_.consts;
      if (!is_carry && (gradient < 0 || gradient == input.node)) continue;  // nothing is added
      if (gradient < 0) {
        const RecordsBackward backward(body_);
        gradient = full_like(NodeRef{&body_, input.node}, 0).id;
      }
      carried.push_back(input);
      outputs_.push_back({gradient, operand});
    }
    carried_ = std::move(carried);
    outputs_.insert(outputs_.end(), stacked.begin(), stacked.end());
  }

  // ---- Taking the gradient's body out of body_.

  void take_apart() {
    at_.assign(body_.nodes.size(), -1);
    made_.scopes = body_.scopes;
    // Values that the nested scans of the body now give for their gradients belong to the first
    // body.
    for (NodeId id = 0; id <= last_; ++id) {
      if (body_.node(id).op == Op::scan) forward_.node(id) = body_.node(id);
    }
    for (std::vector<Input>* const list : {&carried_, &stacked_}) {
      for (Input& input : *list) {
        const NodeId of_body = input.node;
        input.node = append_input(made_, body_.node(of_body).type, label_of(of_body));
        at_[as_size(of_body)] = input.node;
      }
    }
    std::vector<bool> is_used(body_.nodes.size(), false);
    for (const Output& output : outputs_) is_used[as_size(output.node)] = true;
    for (auto id = static_cast<NodeId>(body_.nodes.size()) - 1; id > last_; --id) {
      if (!is_used[as_size(id)]) continue;
      for (const NodeId operand : body_.node(id).operands) is_used[as_size(operand)] = true;
    }
    for (NodeId id = last_ + 1; id < static_cast<NodeId>(body_.nodes.size()); ++id) {
      if (is_used[as_size(id)] && at_[as_size(id)] < 0) copy(id);
    }
    for (const Output& output : outputs_) made_.outputs.push_back(value(output.node));
  }

  std::string label_of(NodeId input) const {
    for (const GraphInput& one : body_.inputs) {
      if (one.node == input) return one.label;
    }
    return "";
  }

  /// The node of made_ that has the value of a node of body_.
  NodeId value(NodeId id) {
    if (at_[as_size(id)] >= 0) return at_[as_size(id)];
    if (id <= last_ && body_.node(id).op == Op::input) {
      for (std::size_t i = 0; i < scan_.first_x() + scan_.xs; ++i) {
        if (scan_.input(i) != id) continue;
        if (i < scan_.consts) return given(id, call_.operands[i], consts_);
        if (i >= scan_.first_x()) return given(id, call_.operands[i], stacked_);
      }
      return kept(id);
    }
    const bool again = id > last_ || is_invariant_[as_size(id)] || is_spread(body_.node(id));
    return again ? copy(id) : kept(id);
  }

  NodeId copy(NodeId id) {
    const Node& node = body_.node(id);
    // A result of a nested scan of the first body.
    if (id > last_ && node.op == Op::result && node.operands[0] <= last_ &&
        !is_invariant_[as_size(node.operands[0])]) {
      return kept(id);
    }
    Node copied = node;
    copied.block = 0;
    copied.backward = true;
    for (NodeId& operand : copied.operands) operand = value(operand);
    made_.nodes.push_back(std::move(copied));
    return at_[as_size(id)] = static_cast<NodeId>(made_.nodes.size()) - 1;
  }

  NodeId given(NodeId id, const NodeRef& from, std::vector<Input>& list) {
    TensorType type = from.type();
    if (&list == &stacked_) type.shape = slice_shape(type.shape);
    const NodeId made = append_body_input(made_, from, label_of(id), type);
    list.push_back({made, from});
    return at_[as_size(id)] = made;
  }

  /// A value that the first scan gives for each trip.
  NodeId kept(NodeId id) {
    NodeId in_forward = id;
    if (id > last_) {
      in_forward = static_cast<NodeId>(forward_.nodes.size());
      forward_.nodes.push_back(body_.node(id));
      forward_.nodes.back().backward = false;
    }
    const auto ys = forward_.outputs.begin() + static_cast<std::ptrdiff_t>(scan_.carries);
    const auto found = std::find(ys, forward_.outputs.end(), in_forward);
    const std::int64_t index = found - forward_.outputs.begin();
    if (found == forward_.outputs.end()) forward_.outputs.push_back(in_forward);
    kept_.push_back({id, index});
    const NodeId made = append_input(made_, body_.node(id).type, fmt::format("kept %{}", id));
    return at_[as_size(id)] = made;
  }

  /// A kept value: the node of body_ and the number of the first scan's result.
  struct Kept {
    NodeId node;
    std::int64_t index;
  };

  Gradients append_scan() {
    auto& attributes = std::get<ScanAttributes>(graph_.node(call_.node.id).attributes);
    attributes.body = std::make_shared<const Graph>(std::move(forward_));
    for (const Kept& kept : kept_) {
      const NodeRef result =
          append_to(call_.node, Op::result, {call_.node}, ResultAttributes{kept.index});
      stacked_.push_back({at_[as_size(kept.node)], result});
    }
    std::vector<NodeRef> operands;
    std::vector<GraphInput> inputs;
    for (const std::vector<Input>* const list : {&consts_, &carried_, &stacked_}) {
      for (const Input& input : *list) {
        operands.push_back(input.from);
        inputs.push_back(
            *std::find_if(made_.inputs.begin(), made_.inputs.end(),
                          [&](const GraphInput& one) { return one.node == input.node; }));
      }
    }
    made_.inputs = std::move(inputs);
    const NodeRef scan = append(
        call_.node, Op::scan, std::span<const NodeRef>(operands),
        ScanAttributes{std::make_shared<const Graph>(with_inputs_first(std::move(made_))),
                       scan_.length, std::ssize(carried_), std::ssize(stacked_), !scan_.reverse});
    Gradients gradients(call_.operands.size());
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      const std::size_t operand = outputs_[i].operand;
      if (!call_.wanted[operand]) continue;
      gradients[operand] =
          append_to(scan, Op::result, {scan}, ResultAttributes{static_cast<std::int64_t>(i)});
    }
    return gradients;
  }

  const BodiesGradientCall& call_;
  GraphBuilder& graph_;
  const Node node_;  ///< the graph grows: nodes move
  const BodyParts scan_;
  GraphBuilder body_;
  Graph forward_;
  const NodeId last_;  ///< of the first body
  const std::vector<bool> is_invariant_;
  std::vector<std::size_t> derived_;  ///< operands
  std::vector<bool> result_depends_;
  std::vector<std::optional<NodeRef>> cotangents_;  ///< by node of body_
  std::vector<Input> consts_, carried_, stacked_;
  std::vector<Output> outputs_;
  std::vector<Kept> kept_;
  GraphBuilder made_;
  std::vector<NodeId> at_;  ///< by node of body_; -1: not there yet
};

}  // namespace

Gradients scan_gradient(const BodiesGradientCall& call) { return ScanGradient(call).run(); }

}  // namespace shardwise::detail
