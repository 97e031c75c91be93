#include "shardwise/runtime/spmd/detail/partition.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/runtime/spmd/detail/choose.h"
#include "shardwise/runtime/spmd/detail/control/live_results.h"
#include "shardwise/runtime/spmd/detail/control/loops.h"
#include "shardwise/runtime/spmd/detail/cost.h"
#include "shardwise/runtime/spmd/detail/parts_of_sums.h"
#include "shardwise/runtime/spmd/detail/remake.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

using ValueId = PartitionedGraph::ValueId;

// An op that only moves elements is recomputed through at most this many ops.
constexpr int kMostRemade = 4;

class Partitioner {
 public:
  /// `sums`: carries of a body that may come in and go out as parts of a sum.
  Partitioner(const Graph& graph, const Mesh& mesh, const Propagation& propagation,
              const PartitionOptions& options, const std::vector<CarriedSum>& sums = {})
      : graph_(graph),
        mesh_(mesh),
        propagation_(propagation),
        options_(options),
        parts_(graph, propagation.rules, sums),
        versions_(graph.nodes.size()),
        is_weight_(weights_of(graph)),
        passes_(passes_of(graph, is_weight_)),
        cost_of_unused_(graph.nodes.size()) {}

  PartitionedGraph run(const std::vector<Cut>& input_cuts) {
    for (std::size_t i = 0; i < graph_.inputs.size(); ++i) {
      const NodeId node = graph_.inputs[i].node;
      const ValueId value = add_value({node, input_cuts[i]});
      result_.inputs.push_back(value);
      versions_[as_size(node)].push_back({value, 0});
      settle(node);
    }
    for (NodeId id = 0; id < static_cast<NodeId>(graph_.nodes.size()); ++id) {
      if (!parts_.is_used(id) || graph_.node(id).op == Op::input) continue;
      try {
        compute(id);
      } catch (const Error& error) {
        throw Error(error.code(), fmt::format("{}: {}", with_scope(graph_, id), error.what()));
      }
    }
    for (std::size_t o = 0; o < graph_.outputs.size(); ++o) {
      const NodeId id = graph_.outputs[o];
      const bool as_parts = parts_.leaves_as_parts(id) && primary(id).partial != 0;
      result_.outputs.push_back(as_parts ? versions_[as_size(id)].front().value
                                         : fetch(id, propagation_.outputs[o], id));
    }
    drop_unused_steps(result_);
    return std::move(result_);
  }

 private:
  struct Version {
    ValueId value;
    std::int64_t pass;  ///< of the node that it was made for
  };

  const Shape& shape_of(NodeId node) const { return graph_.node(node).type.shape; }

  ValueId add_value(PartitionedGraph::Value value) {
    result_.values.push_back(std::move(value));
    return static_cast<ValueId>(result_.values.size()) - 1;
  }

  const PartitionedGraph::Value& value(ValueId id) const { return result_.values[as_size(id)]; }
  const PartitionedGraph::Value& primary(NodeId node) const {
    return value(versions_[as_size(node)].front().value);
  }

  void compute(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.op == Op::enter_manual || node.op == Op::leave_manual) return cross_border(id);
    if (node.op == Op::manual_all_reduce) return all_reduce(id);
    if (has_bodies(node.op)) return loop(id);
    if (node.op == Op::result) return result(id);
    const FactorRule& rule = propagation_.rules[as_size(id)];
    AxisSet carried = carried_by(id);
    std::string notes;
    FactorChoice choice = choose_for(id, carried, notes);
    if (carried != 0 && !keeps_operands(node, rule, choice)) {
      carried = 0;
      notes.clear();
      choice = choose_for(id, 0, notes);
    }
    PartitionedGraph::Compute step{id, {}, 0};
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      const NodeId operand = node.operands[i];
      const bool as_parts = carried != 0 && primary(operand).partial != 0;
      step.operands.push_back(as_parts ? versions_[as_size(operand)].front().value
                                       : fetch(operand, part_of(rule, i, choice.factors), id));
    }
    PartitionedGraph::Value made{id, choice.result, carried | choice.partial, rule.reduction};
    made.is_wide = is_wide(made, step.operands);
    step.result = add_value(std::move(made));
    versions_[as_size(id)] = {{step.result, pass_of(id)}};
    cost_of_unused_[as_size(id)] = choice.bytes / static_cast<double>(size_bytes(node.type.dtype));
    result_.steps.push_back(std::move(step));
    if (!notes.empty()) result_.choices.emplace_back(id, std::move(notes));
    settle(id);
  }

  /// True for parts of a sum, and for values that have the bytes of a wide operand.
  bool is_wide(const PartitionedGraph::Value& made, const std::vector<ValueId>& operands) const {
    const Node& node = graph_.node(made.node);
    if (made.partial == 0 || !is_rounded(made.reduction)) return false;
    if (is_alias(node.op)) return value(operands.front()).is_wide;
    return !(sum_type(node.type) == node.type);
  }

  /// The same numbers, converted to wide or back.
  ValueId converted(ValueId from, bool is_wide) {
    if (value(from).is_wide == is_wide) return from;
    PartitionedGraph::Value to = value(from);
    to.is_wide = is_wide;
    const NodeId node = to.node;
    const ValueId result = add_value(std::move(to));
    result_.steps.push_back(PartitionedGraph::Compute{node, {from}, result, true});
    return result;
  }

  /// Adds a scan or cond, whose operands are cut as the body takes them.
  void loop(NodeId id) {
    const Node& node = graph_.node(id);
    const detail::BodyParts parts(node);
    const std::shared_ptr<const Propagation>& inner = propagation_.bodies.at(id);
    PartitionedGraph::Loop step{id, {}, {}, {}, {}};
    if (parts.skip > 0) step.operands.push_back(fetch(node.operands[0], {}, id));
    std::vector<Cut> inputs;
    for (std::size_t i = 0; i < parts.inputs(); ++i) {
      inputs.push_back(inner->cuts[as_size(parts.input(i))]);
      const Cut needed = i < parts.first_x() ? inputs.back() : stacked_cut(inputs.back());
      step.operands.push_back(fetch(node.operands[parts.skip + i], needed, id));
    }
    PartitionedBody body = partition_body(node, inner, inputs);
    if (detail::has_otherwise(node)) {
      const detail::BodyParts other(node, detail::BodyParts::Which::otherwise);
      const std::shared_ptr<const Propagation>& cuts = propagation_.otherwise.at(id);
      step.otherwise = std::make_shared<const PartitionedBody>(PartitionedBody{
          other.graph, cuts, partition(other.body(), mesh_, *cuts, inputs, options_)});
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {  // zeros, for parts of a sum
      ValueId& operand = step.operands[parts.skip + i];
      const ValueId taken = body.partitioned.inputs[i];
      if (body.partitioned.values[as_size(taken)].is_wide) operand = converted(operand, true);
    }
    if (parts.is_loop) {
      auto at = step.operands.begin() + static_cast<std::ptrdiff_t>(parts.consts);
      for (const InvariantMove& move : take_invariant_moves(body, parts.consts)) {
        at = step.operands.insert(at, fetch(node.operands[move.input], move.to, id)) + 1;
      }
    }
    add_results(step, parts, body);
    step.body = std::make_shared<const PartitionedBody>(std::move(body));
    result_.steps.push_back(std::move(step));
    // The node itself is a tensor of no elements.
    const ValueId nothing = add_value({id, Cut(node.type.shape.size())});
    result_.steps.push_back(PartitionedGraph::Compute{id, {}, nothing});
    versions_[as_size(id)] = {{nothing, pass_of(id)}};
    settle(id);
  }

  void add_results(PartitionedGraph::Loop& step, const detail::BodyParts& parts,
                   const PartitionedBody& body) {
    std::vector<ValueId>& results = results_of_[step.node];
    results.assign(parts.carries + parts.ys, -1);
    const auto add = [&](std::size_t r, NodeId node) {
      const Cut& cut = body.propagation->outputs[r];
      const PartitionedGraph::Value& out =
          body.partitioned.values[as_size(body.partitioned.outputs[r])];
      results[r] = add_value({node, parts.is_stacked(r) ? stacked_cut(cut) : cut, out.partial,
                              Reduction::sum, out.is_wide});
    };
    for (const NodeId user : parts_.users(step.node)) {
      const Node& one = graph_.node(user);
      if (one.op != Op::result || !parts_.is_used(user)) continue;
      const auto r = as_size(std::get<ResultAttributes>(one.attributes).index);
      if (results[r] < 0) add(r, user);
    }
    for (std::size_t r = 0; r < results.size(); ++r) {
      // A carry that only the body needs has the type of its initial value.
      if (results[r] < 0) add(r, graph_.node(step.node).operands[parts.consts + r]);
    }
    step.results = results;
  }

  /// Sums that begin with zeros are combined after the last trip, if possible.
  PartitionedBody partition_body(const Node& node, const std::shared_ptr<const Propagation>& inner,
                                 const std::vector<Cut>& inputs) const {
    const detail::BodyParts scan(node);
    std::vector<CarriedSum> sums;
    // On one device there are no parts of a sum.
    for (CarriedSum& sum : mesh_.size() == 1 ? std::vector<CarriedSum>() : carried_sums(scan)) {
      if (parts_.is_zero(node.operands[scan.consts + sum.carry])) sums.push_back(std::move(sum));
    }
    while (true) {
      PartitionedBody body{scan.graph, inner,
                           Partitioner(scan.body(), mesh_, *inner, options_, sums).run(inputs)};
      const std::size_t tried = sums.size();
      std::erase_if(sums, [&](const CarriedSum& sum) { return !stays_parts(body, sum); });
      if (sums.size() < tried) continue;
      for (const CarriedSum& sum : sums) {
        const auto of = [&](PartitionedGraph::ValueId id) -> PartitionedGraph::Value& {
          return body.partitioned.values[as_size(id)];
        };
        PartitionedGraph::Value& in = of(body.partitioned.inputs[scan.consts + sum.carry]);
        in.partial = of(body.partitioned.outputs[sum.carry]).partial;
        in.is_wide = of(body.partitioned.outputs[sum.carry]).is_wide;
      }
      return body;
    }
  }

  void result(NodeId id) {
    const Node& node = graph_.node(id);
    const auto index = as_size(std::get<ResultAttributes>(node.attributes).index);
    versions_[as_size(id)] = {{results_of_.at(node.operands[0])[index], pass_of(id)}};
    settle(id);
  }

  /// Enters or leaves a manual region: the bytes stay, only the node changes.
  void cross_border(NodeId id) {
    const Node& node = graph_.node(id);
    const bool enters = node.op == Op::enter_manual;
    const NodeId operand = node.operands[0];
    const Shape& whole = enters ? graph_.node(operand).type.shape : node.type.shape;
    const Shape& part = enters ? node.type.shape : graph_.node(operand).type.shape;
    const auto& a = std::get<ManualAttributes>(node.attributes);
    const Cut cut = to_cut(a.spec, mesh_, whole.size());
    for (std::size_t dim = 0; dim < whole.size(); ++dim) {
      const std::int64_t parts = ways(cut[dim], mesh_);
      if (whole[dim] % parts == 0 && part[dim] == whole[dim] / parts) continue;
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("found parts of {} for {} cut as {} on mesh {}, needed even parts",
                      to_string(part), to_string(whole), a.spec.to_string(), mesh_.to_string()));
    }
    const ValueId from = fetch(operand, enters ? cut : Cut(whole.size()), id);
    AxisSet replicas = 0;
    for (std::size_t axis = 0; axis < mesh_.rank(); ++axis) {
      if (mesh_.axes()[axis].size > 1) replicas |= AxisSet{1} << axis;
    }
    replicas &= ~axes_of(cut);
    const bool sums = !enters && a.sums;
    const ValueId to =
        add_value({id, enters ? Cut(whole.size()) : cut, sums ? replicas : AxisSet{0}});
    result_.steps.push_back(PartitionedGraph::Compute{id, {from}, to});
    versions_[as_size(id)] = {{to, pass_of(id)}};
    settle(id);
  }

  void all_reduce(NodeId id) {
    const Node& node = graph_.node(id);
    AxisSet axes = 0;
    const auto& a = std::get<ReduceAttributes>(node.attributes);
    for (const std::string& axis : a.axes) {
      const std::size_t number = mesh_.axis_index(axis);
      if (mesh_.axes()[number].size > 1) axes |= AxisSet{1} << number;
    }
    const ValueId from = versions_[as_size(node.operands[0])].front().value;
    if (axes == 0) {
      versions_[as_size(id)] = {{from, pass_of(id)}};
      return;
    }
    const ValueId to = add_value({id, Cut(node.type.shape.size()), 0, a.reduction});
    add_combine(from, to, CollectiveKind::all_reduce, axes, id);
    versions_[as_size(id)] = {{to, pass_of(id)}};
  }

  /// The axes over which operands are, and may stay, parts of a sum.
  AxisSet carried_by(NodeId id) const {
    const Node& node = graph_.node(id);
    AxisSet carried = 0;
    std::size_t parts = 0;
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      const PartitionedGraph::Value& operand = primary(node.operands[i]);
      if (operand.partial == 0) continue;
      if (linearity(node) == Linear::no || operand.reduction != Reduction::sum) return 0;
      if (carried != 0 && carried != operand.partial) return 0;
      carried = operand.partial;
      ++parts;
    }
    if (carried == 0) return 0;
    const bool in_all = linearity(node) == Linear::in_all;
    if (parts != (in_all ? node.operands.size() - parts_.zeros_among(node) : 1)) return 0;
    for (const NodeId operand : node.operands) {
      if (axes_of(primary(operand).cut) & carried) return 0;
      // Combining larger parts later would take more bytes.
      if (primary(operand).partial != 0 &&
          num_elements(node.type.shape) > num_elements(graph_.node(operand).type.shape)) {
        return 0;
      }
    }
    return carried;
  }

  /// The cut that an operand needs.
  Cut part_of(const FactorRule& rule, std::size_t operand, const FactorCut& factors) const {
    return cut_of(factors, rule.operands[operand], rule.factors, mesh_);
  }

  /// True if operands that are parts of a sum are used unchanged.
  bool keeps_operands(const Node& node, const FactorRule& rule, const FactorChoice& choice) const {
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      const PartitionedGraph::Value& operand = primary(node.operands[i]);
      if (operand.partial != 0 && !holds(shape_of(node.operands[i]), operand.cut,
                                         part_of(rule, i, choice.factors), mesh_)) {
        return false;
      }
    }
    return true;
  }

  FactorChoice choose_for(NodeId id, AxisSet carried, std::string& notes) {
    const Node& node = graph_.node(id);
    const FactorRule& rule = propagation_.rules[as_size(id)];
    const Cut& wanted = propagation_.cuts[as_size(id)];
    operands_.clear();
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      const NodeId operand = node.operands[i];
      OperandState& state = operands_.emplace_back();
      state.node = operand;
      state.type = &graph_.node(operand).type;
      state.dims = &rule.operands[i];
      state.partial = primary(operand).partial;
      state.is_wide = primary(operand).is_wide;
      for (const Version& version : versions_[as_size(operand)]) {
        if (usable(operand, version, id)) state.cuts.push_back(&value(version.value).cut);
      }
    }
    FactorChoice choice;
    if (carried == 0 && agreed(rule, wanted, choice)) return choice;
    std::string* const all = options_.note_choices ? &notes : nullptr;
    const bool exact = node.mark.has_value() || parts_.is_output(id);
    const bool multiplies = row(node.op).traits().is_product;
    return choose(
        {rule, node.type, operands_, wanted, exact, multiplies, carried, parts_.share(id)}, mesh_,
        all);
  }

  /// True if there is no choice: the same factors already cut operands and wanted result.
  bool agreed(const FactorRule& rule, const Cut& wanted, FactorChoice& choice) const {
    FactorCut& factors = choice.factors;
    factors.assign(rule.factors.size(), {});
    project(wanted, rule.result, rule.factors, mesh_, factors);
    for (const OperandState& operand : operands_) {
      if (operand.partial != 0) return false;
      project(*operand.cuts.front(), *operand.dims, rule.factors, mesh_, factors);
    }
    AxisSet used = 0;
    for (std::size_t f = 0; f < factors.size(); ++f) {
      if (factors[f].empty()) continue;
      if (rule.factors[f].kind != Factor::Kind::pass_through || (used & factors[f].set())) {
        return false;
      }
      used |= factors[f].set();
    }
    for (std::size_t i = 0; i < operands_.size(); ++i) {
      if (!is_box(factors, rule.operands[i], rule.factors, mesh_)) return false;
      const OperandState& operand = operands_[i];
      if (!holds(operand.type->shape, *operand.cuts.front(), part_of(rule, i, factors), mesh_)) {
        return false;
      }
    }
    if (!is_box(factors, rule.result, rule.factors, mesh_)) return false;
    choice.result = cut_of(factors, rule.result, rule.factors, mesh_);
    return choice.result == wanted;
  }

  std::int64_t pass_of(NodeId node) const { return passes_[as_size(node)]; }

  bool usable(NodeId node, const Version& version, NodeId consumer) const {
    if (!is_weight_[as_size(node)] || options_.keep_gathered_weights) return true;
    return version.value == versions_[as_size(node)].front().value ||
           version.pass == pass_of(consumer);
  }

  /// Settles a node that was just made: marks are met, and a sum is combined if nothing can use its
  /// parts.
  void settle(NodeId id) {
    const Node& node = graph_.node(id);
    const Cut& wanted = propagation_.cuts[as_size(id)];
    const PartitionedGraph::Value& made = primary(id);
    const bool exact = node.mark || node.op == Op::input;
    if (exact && (made.partial != 0 || !(made.cut == wanted))) {
      const ValueId moved = fetch(id, wanted, id);
      versions_[as_size(id)] = {{moved, pass_of(id)}};
    } else if (made.partial != 0 && !may_stay_parts(id)) {
      const ValueId moved = fetch(id, combined_cut(made.cut, made.partial, wanted), id);
      versions_[as_size(id)] = {{moved, pass_of(id)}};
    }
  }

  bool may_stay_parts(NodeId id) const {
    return primary(id).reduction == Reduction::sum && parts_.hands_on(id) && !waits_in_parts(id);
  }

  /// True if it would wait for a later pass as parts that are larger than the wanted sum.
  bool waits_in_parts(NodeId id) const {
    if (options_.keep_gathered_weights) return false;
    const PartitionedGraph::Value& made = primary(id);
    const Cut sum = combined_cut(made.cut, made.partial, propagation_.cuts[as_size(id)]);
    return (axes_of(sum) & made.partial) != 0 &&
           std::ranges::any_of(parts_.users(id),
                               [&](NodeId user) { return pass_of(user) > pass_of(id); });
  }

  /// The node's tensor, cut as needed and combined, or with more elements in dims with a window.
  /// Moves it if it is not available yet.
  ValueId fetch(NodeId node, const Cut& needed, NodeId consumer) {
    std::vector<Version>& versions = versions_[as_size(node)];
    const TensorType& type = graph_.node(node).type;
    ValueId from = versions.front().value;
    double least = -1;
    for (const Version& version : versions) {
      const PartitionedGraph::Value& have = value(version.value);
      if (have.partial != 0 || !usable(node, version, consumer)) continue;
      if (holds(type.shape, have.cut, needed, mesh_)) {
        cost_of_unused_[as_size(node)] = 0;
        return version.value;
      }
      if (has_windows(have.cut)) continue;  // it lacks a part of the tensor
      const double missing = missing_elements(type.shape, have.cut, needed, mesh_);
      if (least < 0 || missing < least) {
        least = missing;
        from = version.value;
      }
    }
    if (least < 0) {  // there are parts of a sum only
      const PartitionedGraph::Value& have = value(versions.front().value);
      from =
          combine(versions.front().value, combined_cut(have.cut, have.partial, needed), consumer);
    }
    const bool may_be_remade = least > 0 || (least == 0 && repeats(graph_, node));
    const double remade = may_be_remade ? remade_elements(node, needed, consumer, kMostRemade)
                                        : std::numeric_limits<double>::infinity();
    if (remade < least + cost_of_unused_[as_size(node)] || (least == 0 && remade == 0)) {
      versions.push_back({remake(node, needed, consumer), pass_of(consumer)});
      return versions.back().value;
    }
    cost_of_unused_[as_size(node)] = 0;
    if (value(from).partial == 0 && holds(type.shape, value(from).cut, needed, mesh_)) {
      if (from != versions.front().value) versions.push_back({from, pass_of(consumer)});
      return from;
    }
    const ValueId to = add_value({node, needed});
    add_move(from, to, consumer);
    versions.push_back({to, pass_of(consumer)});
    return to;
  }

  /// The number of elements that a device lacks for recomputing its part from the operands, which
  /// may be recomputed as well, to this depth.
  double remade_elements(NodeId id, const Cut& needed, NodeId consumer, int depth) const {
    const Node& node = graph_.node(id);
    if (depth == 0 || !can_be_remade(node)) return std::numeric_limits<double>::infinity();
    double elements = 0;
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      const NodeId operand = node.operands[i];
      const std::optional<Cut> part =
          needed_to_remake(graph_, node, propagation_.rules[as_size(id)], i, needed);
      if (!part) return std::numeric_limits<double>::infinity();
      double least = remade_elements(operand, *part, consumer, depth - 1);
      for (const Version& version : versions_[as_size(operand)]) {
        const PartitionedGraph::Value& have = value(version.value);
        if (have.partial != 0 || !usable(operand, version, consumer)) continue;
        const bool has_it = holds(shape_of(operand), have.cut, *part, mesh_);
        if (!has_it && has_windows(have.cut)) continue;
        least = std::min(least,
                         has_it ? 0 : missing_elements(shape_of(operand), have.cut, *part, mesh_));
      }
      elements += least;
    }
    return elements;
  }

  ValueId remake(NodeId id, const Cut& needed, NodeId consumer) {
    const Node& node = graph_.node(id);
    PartitionedGraph::Compute step{id, {}, 0};
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      const Cut part = *needed_to_remake(graph_, node, propagation_.rules[as_size(id)], i, needed);
      step.operands.push_back(fetch(node.operands[i], part, consumer));
    }
    step.result = add_value({id, needed});
    result_.steps.push_back(step);
    return step.result;
  }

  /// Parts of a sum become the sum: first over the axes that cut the result, then over the others.
  /// A wide sum is then rounded.
  ValueId combine(ValueId from, const Cut& to, NodeId consumer) {
    const PartitionedGraph::Value parts = value(from);
    const AxisSet scattered = parts.partial & axes_of(to);
    const AxisSet rest = parts.partial & ~scattered;
    ValueId at = from;
    if (scattered != 0) {
      const ValueId next = add_value({parts.node, to, rest, parts.reduction, parts.is_wide});
      add_combine(at, next, CollectiveKind::reduce_scatter, scattered, consumer);
      at = next;
    }
    if (rest != 0) {
      const ValueId next = add_value({parts.node, to, 0, parts.reduction, parts.is_wide});
      add_combine(at, next, CollectiveKind::all_reduce, rest, consumer);
      at = next;
    }
    return converted(at, false);
  }

  std::size_t part_bytes(ValueId id) const {
    const TensorType type = type_of(graph_, value(id));
    return static_cast<std::size_t>(part_elements(type.shape, value(id).cut, mesh_)) *
           size_bytes(type.dtype);
  }

  void add_combine(ValueId from, ValueId to, CollectiveKind kind, AxisSet axes, NodeId consumer) {
    const std::size_t bytes = part_bytes(to);
    const std::size_t group = as_size(ways(axes, mesh_));
    const std::size_t wire =
        kind == CollectiveKind::all_reduce ? 2 * (group - 1) * bytes / group : (group - 1) * bytes;
    result_.steps.push_back(PartitionedGraph::Move{from, to, kind, axes, bytes, wire, consumer});
  }

  void add_move(ValueId from, ValueId to, NodeId consumer) {
    const Cut &a = value(from).cut, &b = value(to).cut;
    const TensorType& type = graph_.node(value(to).node).type;
    const double missing = missing_elements(type.shape, a, b, mesh_);
    bool gathers = true;
    AxisSet changed = 0;
    for (std::size_t dim = 0; dim < a.size(); ++dim) {
      gathers &= b[dim].is_prefix_of(a[dim]);
      if (a[dim] == b[dim]) continue;
      const bool in_other_tiles = a[dim].set() == b[dim].set() &&
                                  (a[dim].tile() != b[dim].tile() || b[dim].window().is_set());
      changed |= in_other_tiles ? a[dim].set() : a[dim].set() ^ b[dim].set();
    }
    CollectiveKind kind = CollectiveKind::general;
    if (missing == 0) {
      kind = CollectiveKind::slice;
    } else if (gathers) {
      kind = CollectiveKind::all_gather;
    } else if (has_windows(b) && axes_of(a) == axes_of(b)) {
      kind = CollectiveKind::permute;
    } else if (axes_of(a) == axes_of(b)) {
      kind = CollectiveKind::all_to_all;
    }
    result_.steps.push_back(PartitionedGraph::Move{
        from, to, kind, changed, part_bytes(to),
        static_cast<std::size_t>(std::lround(missing)) * size_bytes(type.dtype), consumer});
  }

  const Graph& graph_;
  const Mesh& mesh_;
  const Propagation& propagation_;
  const PartitionOptions& options_;
  const PartsOfSums parts_;
  PartitionedGraph result_;
  std::vector<std::vector<Version>> versions_;  ///< by node; the first is the one made or settled
  std::vector<bool> is_weight_;                 ///< by node
  std::vector<std::int64_t> passes_;            ///< by node
  std::map<NodeId, std::vector<ValueId>> results_of_;  ///< by scan or cond

  /// By node: elements moved to make it, as long as it is unused.
  std::vector<double> cost_of_unused_;
  std::vector<OperandState> operands_;
};

}  // namespace

TensorType type_of(const Graph& graph, const PartitionedGraph::Value& value) {
  const TensorType& type = graph.node(value.node).type;
  return value.is_wide ? sum_type(type) : type;
}

PartitionedGraph partition(const Graph& graph, const Mesh& mesh, const Propagation& propagation,
                           const std::vector<Cut>& input_cuts, const PartitionOptions& options) {
  return Partitioner(graph, mesh, propagation, options).run(input_cuts);
}

std::int64_t trips(const Graph& graph, const PartitionedGraph::Loop& loop) {
  return detail::BodyParts(graph.node(loop.node)).length;
}

}  // namespace shardwise
