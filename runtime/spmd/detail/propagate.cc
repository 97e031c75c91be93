#include "shardwise/runtime/spmd/detail/propagate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <queue>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

enum class Direction { forward, backward, both };

/// The factors that propagate. Summed factors are excluded for tables: a table cut along its rows
/// does not determine the cut of the look-ups.
enum class Heard { pass_through, all };

/// The spec of a tensor that leaves a manual region: its cut there.
std::optional<PartitionSpec> fixed_spec(const Node& node) {
  if (node.op == Op::leave_manual) return std::get<ManualAttributes>(node.attributes).spec;
  return node.mark;
}

/// Finds the nodes that are weights or optimizer state. Marks of all other nodes are marks of data.
std::vector<bool> weights_and_state(const Graph& graph) {
  std::vector<bool> is_weight(graph.nodes.size(), false);
  for (const GraphInput& input : graph.inputs) {
    is_weight[as_size(input.node)] =
        input.kind == MemoryKind::parameter || input.kind == MemoryKind::optimizer;
  }
  return is_weight;
}

/// A broadcast that repeats its operand; one that only adds dims of extent 1 does not.
bool repeats(const Graph& graph, const Node& node) {
  return node.op == Op::broadcast &&
         num_elements(node.type.shape) != num_elements(graph.node(node.operands[0]).type.shape);
}

/// The nodes to be visited in passes over the graph, up or down. A node is visited again if one of
/// its tensors has changed since the last visit. Any other visit would change nothing.
class Agenda {
 public:
  enum class Order { up, down };

  Agenda(std::size_t count, Order order) : order_(order), is_noted_(count, false) {
    for (std::size_t i = 0; i < count; ++i) note(static_cast<NodeId>(i));
  }

  /// Visits the node later in this pass, or in the next one if the pass is beyond it.
  void note(NodeId id) {
    if (is_noted_[as_size(id)]) return;
    is_noted_[as_size(id)] = true;
    (is_in_pass_ && place(id) > at_ ? now_ : next_).push(place(id));
  }

  /// One pass: calls visit(id) in order. False if there was nothing to visit.
  template <class Visit>
  bool pass(const Visit& visit) {
    std::swap(now_, next_);
    is_in_pass_ = true;
    const bool any = !now_.empty();
    while (!now_.empty()) {
      at_ = now_.top();
      now_.pop();
      const NodeId id = order_ == Order::up ? at_ : -at_;
      is_noted_[as_size(id)] = false;
      visit(id);
    }
    is_in_pass_ = false;
    return any;
  }

 private:
  NodeId place(NodeId id) const { return order_ == Order::up ? id : -id; }

  const Order order_;
  using Queue = std::priority_queue<NodeId, std::vector<NodeId>, std::greater<>>;
  Queue now_, next_;
  std::vector<bool> is_noted_;  ///< by node: in one of the queues
  bool is_in_pass_ = false;
  NodeId at_ = 0;
};

/// True if propagation does not change its cut.
bool is_fixed(const Node& node) { return node.op == Op::leave_manual || node.mark; }

class Propagator {
 public:
  Propagator(const Graph& graph, const Mesh& mesh)
      : graph_(graph),
        mesh_(mesh),
        is_weight_(weights_and_state(graph)),
        users_(graph.nodes.size()),
        data_axes_(graph.nodes.size(), 0) {
    const std::size_t count = graph.nodes.size();
    result_.cuts.resize(count);
    result_.origins.resize(count);
    result_.rules.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const Node& node = graph.nodes[i];
      const auto id = static_cast<NodeId>(i);
      result_.rules.push_back(factor_rule(graph, node));
      const std::size_t rank = node.type.shape.size();
      result_.origins[i].assign(rank, -1);
      result_.cuts[i].resize(rank);
      if (fixed_spec(node)) take_mark(id);
      for (const NodeId operand : node.operands) users_[as_size(operand)].push_back(id);
      if (has_bodies(node.op)) {
        bodies_[id].add(detail::BodyParts(node), mesh);
        if (detail::has_otherwise(node)) {
          bodies_[id].add(detail::BodyParts(node, detail::BodyParts::Which::otherwise), mesh);
        }
      } else if (node.op == Op::result) {
        bodies_.at(node.operands[0]).results.push_back(id);
      }
    }
  }

  Propagation run() {
    for (const Phase phase : {Phase::pointwise, Phase::forward, Phase::all}) settle(phase);
    for (const NodeId output : graph_.outputs) {
      result_.outputs.push_back(without_tiles(result_.cuts[as_size(output)]));
    }
    return take();
  }

 private:
  /// The constraints that are applied, the strongest first.
  enum class Phase { none, pointwise, forward, all };

  void settle(Phase phase) {
    const auto pointwise = [](const Node& node) {
      return is_elementwise(node.op) || node.op == Op::transpose ||
             (is_alias(node.op) && node.op != Op::reshape) || has_bodies(node.op) ||
             node.op == Op::result;
    };
    const auto once = [&](const Node& node) { return !repeats(graph_, node); };
    const auto all = [](const Node&) { return true; };
    phase_ = phase;
    heard_kinds_ = phase == Phase::all ? Heard::all : Heard::pass_through;
    if (phase == Phase::pointwise) {
      settle({{Agenda::Order::up, Direction::both}}, pointwise);
    } else if (phase == Phase::forward) {
      settle({{Agenda::Order::up, Direction::forward}}, once);
    } else {
      settle({{Agenda::Order::down, Direction::backward}, {Agenda::Order::up, Direction::forward}},
             all);
    }
  }

  Propagation take() {
    for (auto& [id, bodies] : bodies_) {
      std::vector<std::shared_ptr<Propagation>> made;
      for (std::size_t b = 0; b < bodies.parts.size(); ++b) {
        made.push_back(
            std::make_shared<Propagation>(bodies.propagators[b]->take_as_body(bodies.parts[b])));
        result_.visits += made[b]->visits;
        made[b]->outputs = made[0]->outputs;
      }
      result_.bodies[id] = made[0];
      if (made.size() > 1) result_.otherwise[id] = made[1];
    }
    return std::move(result_);
  }

  // ---- Bodies of scans and conds.

  struct Bodies {
    std::vector<detail::BodyParts> parts;
    std::vector<std::unique_ptr<Propagator>> propagators;
    std::vector<NodeId> results;

    void add(detail::BodyParts body, const Mesh& mesh) {
      propagators.push_back(std::make_unique<Propagator>(body.body(), mesh));
      parts.push_back(std::move(body));
    }
  };

  /// A carry enters as it leaves, or as the output is marked.
  Propagation take_as_body(const detail::BodyParts& scan) {
    for (std::size_t o = 0; o < graph_.outputs.size(); ++o) {
      const NodeId output = graph_.outputs[o];
      const Cut left = without_tiles(result_.cuts[as_size(output)]);
      if (o >= scan.carries) {
        result_.outputs.push_back(left);
        continue;
      }
      const NodeId input = scan.input(scan.consts + o);
      if (is_fixed(graph_.node(output)) && !is_fixed(graph_.node(input))) {
        result_.cuts[as_size(input)] = left;
      }
      result_.outputs.push_back(result_.cuts[as_size(input)]);
    }
    return take();
  }

  /// Exchanges cuts between outside and inside.
  void visit_bodies(NodeId id, Direction direction) {
    ++result_.visits;
    Bodies& bodies = bodies_.at(id);
    for (std::size_t b = 0; b < bodies.parts.size(); ++b) {
      visit_body(id, bodies.parts[b], *bodies.propagators[b], bodies.results, direction);
    }
  }

  void visit_body(NodeId id, const detail::BodyParts& parts, Propagator& inner,
                  const std::vector<NodeId>& results, Direction direction) {
    const Node& node = graph_.node(id);
    const auto index = [&](NodeId result) {
      return std::get<ResultAttributes>(graph_.node(result).attributes).index;
    };
    const auto cut_in = [&](NodeId tensor, bool is_stacked) {
      const Cut& cut = result_.cuts[as_size(tensor)];
      return is_stacked ? slice_cut(cut) : cut;
    };
    const auto cut_out = [&](NodeId tensor, bool is_stacked) {
      const Cut& cut = inner.result_.cuts[as_size(tensor)];
      return is_stacked ? stacked_cut(cut) : cut;
    };
    for (std::size_t i = 0; i < parts.inputs(); ++i) {
      const NodeId operand = node.operands[parts.skip + i];
      inner.hear_of(parts.input(i), cut_in(operand, i >= parts.first_x()),
                    data_axes_[as_size(operand)], -1);
    }
    for (const NodeId result : results) {
      if (index(result) < 0) continue;
      const std::size_t r = as_size(index(result));
      inner.hear_of(parts.output(r), cut_in(result, parts.is_stacked(r)),
                    data_axes_[as_size(result)], -1);
    }
    inner.settle_body(phase_, parts);
    for (const NodeId result : results) {
      if (direction == Direction::backward || index(result) < 0) continue;
      const std::size_t r = as_size(index(result));
      const NodeId output = parts.output(r);
      hear_of(result, cut_out(output, parts.is_stacked(r)), inner.data_axes_[as_size(output)], id);
    }
    for (std::size_t i = 0; i < parts.inputs() && direction != Direction::forward; ++i) {
      hear_of(node.operands[parts.skip + i], cut_out(parts.input(i), i >= parts.first_x()),
              inner.data_axes_[as_size(parts.input(i))], id);
    }
  }

  /// Propagates as a body, until nothing changes from trip to trip either.
  void settle_body(Phase phase, const detail::BodyParts& scan) {
    if (phase == phase_ && !has_changed_) return;
    do {
      has_changed_ = false;
      settle(phase);
      has_changed_ = false;
      for (std::size_t k = 0; k < scan.carries; ++k) {
        const NodeId in = scan.input(scan.consts + k), out = scan.output(k);
        hear_of(in, result_.cuts[as_size(out)], data_axes_[as_size(out)], out);
        hear_of(out, result_.cuts[as_size(in)], data_axes_[as_size(in)], in);
      }
    } while (has_changed_);
  }

  /// Adds to a tensor axes from elsewhere, beyond its own.
  void hear_of(NodeId tensor, const Cut& said, AxisSet data, NodeId from) {
    if (is_fixed(graph_.node(tensor))) return;
    Cut& cut = result_.cuts[as_size(tensor)];
    const AxisSet before = axes_of(cut);
    AxisSet used = before;
    for (std::size_t dim = 0; dim < cut.size(); ++dim) {
      const AxisList wanted = said[dim].axes_only();
      if (wanted.size() <= cut[dim].size() || !cut[dim].is_prefix_of(wanted)) continue;
      AxisList more = cut[dim].axes_only();
      for (std::size_t i = more.size(); i < wanted.size() && !(used >> wanted[i] & 1); ++i) {
        more.push_back(wanted[i]);
        used |= AxisSet{1} << wanted[i];
      }
      if (more.size() == cut[dim].size()) continue;
      cut[dim] = more;
      result_.origins[as_size(tensor)][dim] = from;
    }
    if (used == before) return;
    data_axes_[as_size(tensor)] |= used & ~before & data;
    note_changed(tensor);
  }

  // ---- Passes.

  struct Pass {
    Agenda::Order order;
    Direction direction;
  };

  void take_mark(NodeId id) {
    const Node& node = graph_.node(id);
    try {
      result_.cuts[as_size(id)] = to_cut(*fixed_spec(node), mesh_, node.type.shape.size());
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("mark {}: {}", with_scope(graph_, id), error.what()));
    }
    if (!is_weight_[as_size(id)]) data_axes_[as_size(id)] = axes_of(result_.cuts[as_size(id)]);
    std::fill(result_.origins[as_size(id)].begin(), result_.origins[as_size(id)].end(), id);
  }

  /// Runs these passes in turn over the nodes that `which` names, until nothing changes.
  template <class Which>
  void settle(const std::vector<Pass>& passes, const Which& which) {
    agendas_.clear();
    for (const Pass& pass : passes) agendas_.emplace_back(graph_.nodes.size(), pass.order);
    for (bool any = true; any;) {
      any = false;
      for (std::size_t i = 0; i < passes.size(); ++i) {
        any |= agendas_[i].pass([&](NodeId id) {
          if (which(graph_.node(id))) visit(id, passes[i].direction);
        });
      }
    }
  }

  /// Notes the nodes that may depend on a changed tensor.
  void note_changed(NodeId tensor) {
    has_changed_ = true;
    for (Agenda& agenda : agendas_) {
      agenda.note(tensor);
      for (const NodeId user : users_[as_size(tensor)]) agenda.note(user);
    }
  }

  /// The request of one tensor of a node: all of its axes, or those that come from marks of data.
  struct Wish {
    NodeId tensor;
    const DimFactors* dims;
    AxisSet axes;
    bool is_data;
    std::int64_t elements;  ///< the more, the sooner it is heard
  };

  void visit(NodeId id, Direction direction) {
    const Node& node = graph_.node(id);
    if (has_bodies(node.op)) return visit_bodies(id, direction);
    if (node.op == Op::result) return visit_bodies(node.operands[0], direction);
    ++result_.visits;
    const FactorRule& rule = result_.rules[as_size(id)];
    if (rule.factors.empty() || node.operands.empty()) return;
    wishes_.clear();
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      // Only the rows of a table that are looked up count.
      const bool is_table = i == 0 && rule.reduction == Reduction::bit_or;
      wish(id, node.operands[i], rule.operands[i], is_table ? elements(id) : INT64_MAX);
    }
    wish(id, id, rule.result, INT64_MAX);
    if (wishes_.empty()) return;
    // The sort keeps operands in order.
    std::stable_sort(wishes_.begin(), wishes_.end(), [](const Wish& a, const Wish& b) {
      return std::tuple(a.elements, a.is_data) > std::tuple(b.elements, b.is_data);
    });
    factors_.assign(rule.factors.size(), {});
    heard_.assign(rule.factors.size(), -1);
    heard_data_ = 0;
    for (const Wish& w : wishes_) hear(id, rule, w);
    if (direction != Direction::backward) refine(id, rule.result, rule);
    if (direction != Direction::forward) {
      for (std::size_t i = 0; i < node.operands.size(); ++i) {
        refine(node.operands[i], rule.operands[i], rule);
      }
    }
  }

  std::int64_t elements(NodeId tensor) const {
    return num_elements(graph_.node(tensor).type.shape);
  }

  /// Data counts as no smaller than tensors computed from it, which are cut in the same way.
  void wish(NodeId node, NodeId tensor, const DimFactors& dims, std::int64_t most) {
    const AxisSet axes = axes_of(result_.cuts[as_size(tensor)]);
    const AxisSet data = axes & data_axes_[as_size(tensor)];
    const std::int64_t own = std::min(elements(tensor), most);
    if (data != 0) {
      wishes_.push_back({tensor, &dims, data, true, std::max(elements(tensor), elements(node))});
    }
    if (axes != data) wishes_.push_back({tensor, &dims, axes, false, own});
  }

  /// The factors' axes: a wish adds axes that do not contradict earlier ones.
  void hear(NodeId id, const FactorRule& rule, const Wish& w) {
    const std::size_t count = rule.factors.size();
    ask(w, rule);
    for (std::size_t f = 0; f < count; ++f) {
      if (asked_[f].empty() || !may_speak(rule.factors[f].kind)) continue;
      if (asked_[f].is_prefix_of(factors_[f])) continue;
      if (!factors_[f].is_prefix_of(asked_[f])) {
        conflict(id, f, w.tensor);
        continue;
      }
      // Axes that an earlier wish put on another factor stay there.
      AxisSet elsewhere = 0;
      for (std::size_t g = 0; g < count; ++g) elsewhere |= g == f ? 0 : factors_[g].set();
      AxisList fits = factors_[f];
      for (std::size_t i = fits.size(); i < asked_[f].size(); ++i) {
        if (elsewhere >> asked_[f][i] & 1) {
          conflict(id, f, w.tensor);
          break;
        }
        fits.push_back(asked_[f][i]);
      }
      if (fits.size() == asked_[f].size()) fits = asked_[f];
      if (fits.size() == factors_[f].size()) continue;
      heard_data_ |= fits.set() & ~factors_[f].set() & data_axes_[as_size(w.tensor)];
      factors_[f] = fits;
      heard_[f] = w.tensor;
    }
  }

  /// The axes that a wish asks for on each factor.
  void ask(const Wish& w, const FactorRule& rule) {
    asked_.assign(rule.factors.size(), {});
    project(result_.cuts[as_size(w.tensor)], *w.dims, rule.factors, mesh_, asked_);
    for (const FactorList& dim : *w.dims) {
      // A few elements of a dim are not cut like the whole dim.
      for (std::size_t i = 0; i < dim.windows.size(); ++i) {
        AxisList& axes = asked_[as_size(dim[i])];
        if (ways(axes, mesh_) > rule.factors[as_size(dim[i])].size) axes = {};
      }
    }
    for (AxisList& axes : asked_) {
      AxisList kept;
      for (const std::uint8_t axis : axes) {
        if (!(w.axes >> axis & 1)) break;
        kept.push_back(axis);
      }
      if (kept.size() < axes.size()) axes = kept;
    }
  }

  bool may_speak(Factor::Kind kind) const {
    return kind == Factor::Kind::pass_through ||
           (kind == Factor::Kind::reduction && heard_kinds_ == Heard::all);
  }

  void conflict(NodeId id, std::size_t factor, NodeId dropped) {
    NodeId kept = heard_[factor];
    for (std::size_t g = 0; kept < 0 && g < factors_.size(); ++g) {
      if (factors_[g].set() & asked_[factor].set()) kept = heard_[g];
    }
    if (!conflicts_.emplace(id, dropped).second) return;
    const auto spec = [&](NodeId tensor) { return to_text(result_.cuts[as_size(tensor)], mesh_); };
    result_.conflicts.push_back(
        {id, kept, dropped,
         fmt::format("{}: found %{} cut as {} and %{} cut as {}, kept the first for it",
                     with_scope(graph_, id), kept, spec(kept), dropped, spec(dropped))});
  }

  /// Adds axes of the factors to a tensor, beyond its own.
  void refine(NodeId tensor, const DimFactors& dims, const FactorRule& rule) {
    if (is_fixed(graph_.node(tensor))) return;
    if (!is_box(factors_, dims, rule.factors, mesh_)) return;
    Cut& cut = result_.cuts[as_size(tensor)];
    const AxisSet before = axes_of(cut);
    AxisSet used = before;
    bool changed = false;
    for (std::size_t dim = 0; dim < dims.size(); ++dim) {
      const bool follows = !dims[dim].windows.empty();
      const AxisList part = cut_of_dim(factors_, dims[dim], rule.factors, mesh_);
      const AxisList wanted = follows ? part.axes_only() : part;
      if (follows && ways(wanted, mesh_) > graph_.node(tensor).type.shape[dim]) continue;
      if (wanted.size() <= cut[dim].size() || !cut[dim].is_prefix_of(wanted)) continue;
      std::size_t count = cut[dim].size();
      while (count < wanted.size() && !(used >> wanted[count] & 1)) ++count;
      if (count == cut[dim].size()) continue;
      AxisList more = cut_of_dim(factors_, dims[dim], rule.factors, mesh_, count);
      if (follows) {
        more = {};
        for (std::size_t i = 0; i < count; ++i) more.push_back(wanted[i]);
      }
      if (more.tile() > 0 && graph_.node(tensor).op == Op::input) continue;
      used |= more.set();
      NodeId from = -1;
      for (const std::int32_t factor : dims[dim]) {
        if (from < 0 && !factors_[as_size(factor)].empty()) from = heard_[as_size(factor)];
      }
      cut[dim] = more;
      result_.origins[as_size(tensor)][dim] = from;
      changed = true;
    }
    if (!changed) return;
    data_axes_[as_size(tensor)] |= axes_of(cut) & ~before & heard_data_;
    note_changed(tensor);
  }

  const Graph& graph_;
  const Mesh& mesh_;
  const std::vector<bool> is_weight_;       ///< by node
  std::vector<std::vector<NodeId>> users_;  ///< by node
  std::vector<AxisSet> data_axes_;          ///< by node: its axes that come from marks of data
  Propagation result_;
  std::set<std::pair<NodeId, NodeId>> conflicts_;  ///< node, tensor whose wish was dropped
  std::vector<Agenda> agendas_;                    ///< of the passes that go on
  Heard heard_kinds_ = Heard::all;
  Phase phase_ = Phase::none;
  bool has_changed_ = false;         ///< a tensor, since the last passes
  std::map<NodeId, Bodies> bodies_;  ///< by scan or cond

  // For the visited node.
  std::vector<Wish> wishes_;
  FactorCut factors_, asked_;
  AxisSet heard_data_ = 0;     // of the factors' axes, those that come from marks of data
  std::vector<NodeId> heard_;  // by factor: the tensor whose wish it is
};

}  // namespace

Propagation propagate(const Graph& graph, const Mesh& mesh) {
  check_axes(mesh);
  return Propagator(graph, mesh).run();
}

Cut slice_cut(const Cut& stacked) { return {stacked.begin() + 1, stacked.end()}; }

Cut stacked_cut(const Cut& slice) {
  Cut cut(1);
  cut.insert(cut.end(), slice.begin(), slice.end());
  return cut;
}

}  // namespace shardwise
