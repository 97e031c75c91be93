#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "shardwise/runtime/ops/control.h"
#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/runtime/ops/detail/pull_back.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

/// A branch while it is recorded, and its results.
struct Branch {
  GraphBuilder body;
  Leaves<NodeRef> given = {};
};

/// The first difference between the branches' results in words, or "".
std::string different(const Leaves<NodeRef>& one, const Leaves<NodeRef>& other) {
  if (one.paths != other.paths) {
    return fmt::format("found branches that give {} and {} tensors, needed the same of both",
                       one.paths.size(), other.paths.size());
  }
  for (std::size_t i = 0; i < one.tensors.size(); ++i) {
    const TensorType &found = other.tensors[i].type(), &needed = one.tensors[i].type();
    if (found == needed) continue;
    return fmt::format("found branches that give result{} as {} and as {}, needed one type",
                       one.paths[i], to_string(needed), to_string(found));
  }
  return "";
}

/// The inputs of the body in the order of `operands`, which are nodes outside.
std::shared_ptr<const Graph> finished(GraphBuilder body, GraphBuilder& outside,
                                      const std::vector<NodeId>& operands,
                                      const Leaves<NodeRef>& given) {
  std::vector<GraphInput> inputs;
  for (const NodeId operand : operands) {
    const NodeId node = inside(body, {&outside, operand});
    inputs.push_back(*std::find_if(body.inputs.begin(), body.inputs.end(),
                                   [&](const GraphInput& one) { return one.node == node; }));
  }
  body.inputs = std::move(inputs);
  for (const NodeRef& leaf : given.tensors) body.outputs.push_back(leaf.id);
  return std::make_shared<const Graph>(with_inputs_first(std::move(body)));
}

std::vector<NodeRef> append_cond(const NodeRef& context, const std::vector<NodeRef>& operands,
                                 CondAttributes attributes) {
  const std::size_t count = attributes.body->outputs.size();
  const NodeRef cond =
      append(context, Op::cond, std::span<const NodeRef>(operands), std::move(attributes));
  std::vector<NodeRef> results;
  for (std::size_t r = 0; r < count; ++r) {
    results.push_back(
        append_to(cond, Op::result, {cond}, ResultAttributes{static_cast<std::int64_t>(r)}));
  }
  return results;
}

}  // namespace

std::vector<NodeRef> record_cond(const NodeRef& predicate, const FlatBranch<NodeRef>& if_true,
                                 const FlatBranch<NodeRef>& if_false) {
  GraphBuilder& outside = innermost(*predicate.graph);
  const NodeRef decides{&outside, inside(outside, predicate)};
  std::array<Branch, 2> branches{Branch{new_body(outside)}, Branch{new_body(outside)}};
  std::vector<NodeId> used;
  for (std::size_t b = 0; b < branches.size(); ++b) {
    Branch& branch = branches[b];
    {
      const OpenBody open(outside, branch.body);
      branch.given = (b == 0 ? if_true : if_false)();
    }
    for (NodeRef& leaf : branch.given.tensors) leaf = {&branch.body, inside(branch.body, leaf)};
    for (const GraphBuilder::Used& one : branch.body.used) {
      if (std::find(used.begin(), used.end(), one.outside) == used.end()) {
        used.push_back(one.outside);
      }
    }
  }
  const std::string problem = different(branches[0].given, branches[1].given);
  if (!problem.empty()) {
    refuse(decides, name(Op::cond), std::span<const NodeRef>(&decides, 1), problem);
  }
  std::vector<NodeRef> operands{decides};
  for (const NodeId id : used) operands.push_back({&outside, id});
  std::array<std::shared_ptr<const Graph>, 2> bodies;
  for (std::size_t b = 0; b < bodies.size(); ++b) {
    Leaves<NodeRef>& given = branches[b].given;
    bodies[b] = finished(std::move(branches[b].body), outside, used, given);
  }
  return append_cond(decides, operands, {bodies[0], bodies[1]});
}

/// Each branch computes the branch again, and then its gradient.
Gradients cond_gradient(const BodiesGradientCall& call) {
  const Node node = call.node.graph->node(call.node.id);  // the graph grows: nodes move
  std::vector<NodeRef> operands(call.operands.begin(), call.operands.end());
  for (const std::optional<NodeRef>& cotangent : call.cotangents) {
    if (cotangent) operands.push_back(*cotangent);
  }
  std::array<std::shared_ptr<const Graph>, 2> bodies;
  for (std::size_t b = 0; b < bodies.size(); ++b) {
    const BodyParts parts(node, b == 0 ? BodyParts::Which::first : BodyParts::Which::otherwise);
    GraphBuilder body(parts.body());
    const auto last = static_cast<NodeId>(body.nodes.size()) - 1;
    const RecordsBackward backward(body);
    std::vector<std::optional<NodeRef>> cotangents;
    for (std::size_t r = 0; r < call.cotangents.size(); ++r) {
      if (!call.cotangents[r]) continue;
      const NodeRef given{&body, append_input(body, call.cotangents[r]->type(),
                                              fmt::format("gradient of result {}", r))};
      cotangents.resize(body.nodes.size());
      std::optional<NodeRef>& sum = cotangents[as_size(parts.output(r))];
      sum = sum ? *sum + given : given;
    }
    cotangents.resize(body.nodes.size());
    std::vector<NodeId> wrt;
    for (std::size_t i = 0; i < parts.consts; ++i) {
      if (call.wanted[parts.skip + i]) wrt.push_back(parts.input(i));
    }
    std::vector<NodeId> made = pull_back(body, last, std::move(cotangents), wrt);
    for (std::size_t i = 0; i < wrt.size(); ++i) {
      if (made[i] < 0) made[i] = full_like(NodeRef{&body, wrt[i]}, 0).id;
    }
    body.outputs = std::move(made);
    for (Node& one : body.nodes) {
      one.backward = true;
      one.block = 0;
    }
    bodies[b] = std::make_shared<const Graph>(with_inputs_first(std::move(body)));
  }
  const std::vector<NodeRef> made = append_cond(call.node, operands, {bodies[0], bodies[1]});
  Gradients gradients(call.operands.size());
  std::size_t next = 0;
  for (std::size_t i = 0; i < call.operands.size(); ++i) {
    if (call.wanted[i]) gradients[i] = made[next++];
  }
  return gradients;
}

}  // namespace shardwise::detail
