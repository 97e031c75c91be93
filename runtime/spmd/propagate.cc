#include "shardwise/runtime/spmd/propagate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>

#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

enum class Direction { forward, backward, both };

/// Whether a factor that is summed over may speak: a table that is cut along its rows says nothing
/// of how the look-ups are to be cut.
enum class Heard { pass_through, all };

/// What leaves a manual region is cut as it was there.
std::optional<PartitionSpec> fixed_spec(const Node& node) {
  if (node.op == Op::leave_manual) return PartitionSpec::parse(node.attributes.text);
  return node.mark;
}

class Propagator {
 public:
  Propagator(const Graph& graph, const Mesh& mesh) : graph_(graph), mesh_(mesh) {
    const std::size_t count = graph.nodes.size();
    result_.cuts.resize(count);
    result_.origins.resize(count);
    result_.rules.reserve(count);
    for (std::size_t i = 0; i < count; ++i) {
      const Node& node = graph.nodes[i];
      result_.rules.push_back(factor_rule(graph, node));
      const std::size_t rank = node.type.shape.size();
      result_.origins[i].assign(rank, -1);
      result_.cuts[i].resize(rank);
      if (fixed_spec(node)) take_mark(static_cast<NodeId>(i));
    }
  }

  Propagation run() {
    const auto pointwise = [](Op op) {
      return is_elementwise(op) || op == Op::transpose || (is_alias(op) && op != Op::reshape);
    };
    const auto all = [](Op) { return true; };
    heard_kinds_ = Heard::pass_through;
    while (sweep(Direction::both, pointwise)) {
    }
    while (sweep(Direction::forward, [](Op op) { return op != Op::broadcast; })) {
    }
    heard_kinds_ = Heard::all;
    for (bool changed = true; changed;) {
      changed = sweep_back(Direction::backward, all);
      changed = sweep(Direction::forward, all) || changed;
    }
    return std::move(result_);
  }

 private:
  void take_mark(NodeId id) {
    const Node& node = graph_.node(id);
    try {
      result_.cuts[as_size(id)] = to_cut(*fixed_spec(node), mesh_, node.type.shape.size());
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("mark {}: {}", with_scope(graph_, id), error.what()));
    }
    std::fill(result_.origins[as_size(id)].begin(), result_.origins[as_size(id)].end(), id);
  }

  template <class Which>
  bool sweep(Direction direction, const Which& which) {
    bool changed = false;
    for (NodeId id = 0; id < static_cast<NodeId>(graph_.nodes.size()); ++id) {
      if (which(graph_.node(id).op)) changed |= visit(id, direction);
    }
    return changed;
  }

  template <class Which>
  bool sweep_back(Direction direction, const Which& which) {
    bool changed = false;
    for (NodeId id = static_cast<NodeId>(graph_.nodes.size()); id-- > 0;) {
      if (which(graph_.node(id).op)) changed |= visit(id, direction);
    }
    return changed;
  }

  /// What one tensor of a node asks for.
  struct Wish {
    NodeId tensor;
    std::int64_t elements;
    const DimFactors* dims;
    bool is_result;
  };

  bool visit(NodeId id, Direction direction) {
    const Node& node = graph_.node(id);
    const FactorRule& rule = result_.rules[as_size(id)];
    if (rule.factors.empty() || node.operands.empty()) return false;
    wishes_.clear();
    AxisSet any = 0;
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      wish(node.operands[i], rule.operands[i], false, any);
    }
    wish(id, rule.result, true, any);
    if (any == 0) return false;
    // The larger is heard first; the sort keeps operands in order.
    std::stable_sort(wishes_.begin(), wishes_.end(),
                     [](const Wish& a, const Wish& b) { return a.elements > b.elements; });
    hear(id, rule);
    bool changed = false;
    if (direction != Direction::backward) changed |= refine(id, rule.result, rule);
    if (direction != Direction::forward) {
      for (std::size_t i = 0; i < node.operands.size(); ++i) {
        changed |= refine(node.operands[i], rule.operands[i], rule);
      }
    }
    return changed;
  }

  void wish(NodeId tensor, const DimFactors& dims, bool is_result, AxisSet& any) {
    const AxisSet axes = axes_of(result_.cuts[as_size(tensor)]);
    if (axes == 0) return;
    any |= axes;
    wishes_.push_back({tensor, num_elements(graph_.node(tensor).type.shape), &dims, is_result});
  }

  /// The factors' axes: of each wish what does not contradict an earlier one.
  void hear(NodeId id, const FactorRule& rule) {
    const std::size_t count = rule.factors.size();
    factors_.assign(count, {});
    heard_.assign(count, -1);
    for (const Wish& w : wishes_) {
      asked_.assign(count, {});
      project(result_.cuts[as_size(w.tensor)], *w.dims, rule.factors, mesh_, asked_);
      for (std::size_t f = 0; f < count; ++f) {
        if (asked_[f].empty() || !may_speak(rule.factors[f].kind)) continue;
        if (asked_[f].is_prefix_of(factors_[f])) continue;
        if (!factors_[f].is_prefix_of(asked_[f])) {
          conflict(id, f, w.tensor);
          continue;
        }
        // Axes that an earlier wish has put on another factor stay there.
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
        if (fits.size() == factors_[f].size()) continue;
        factors_[f] = fits;
        heard_[f] = w.tensor;
      }
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
    for (const Propagation::Conflict& known : result_.conflicts) {
      if (known.node == id && known.dropped == dropped) return;
    }
    const auto spec = [&](NodeId tensor) {
      return to_spec(result_.cuts[as_size(tensor)], mesh_).to_string();
    };
    result_.conflicts.push_back(
        {id, kept, dropped,
         fmt::format("{}: found %{} cut as {} and %{} cut as {}, kept the first for it",
                     with_scope(graph_, id), kept, spec(kept), dropped, spec(dropped))});
  }

  /// Adds to a tensor what the factors say beyond its own axes.
  bool refine(NodeId tensor, const DimFactors& dims, const FactorRule& rule) {
    if (fixed_spec(graph_.node(tensor))) return false;
    if (!is_box(factors_, dims, rule.factors, mesh_)) return false;
    Cut& cut = result_.cuts[as_size(tensor)];
    AxisSet used = axes_of(cut);
    bool changed = false;
    for (std::size_t dim = 0; dim < dims.size(); ++dim) {
      AxisList wanted;
      NodeId from = -1;
      for (const std::int32_t factor : dims[dim]) {
        for (const std::uint8_t axis : factors_[as_size(factor)]) wanted.push_back(axis);
        if (from < 0) from = heard_[as_size(factor)];
      }
      if (wanted.size() <= cut[dim].size() || !cut[dim].is_prefix_of(wanted)) continue;
      AxisList more = cut[dim];
      for (std::size_t i = cut[dim].size(); i < wanted.size(); ++i) {
        if (used >> wanted[i] & 1) break;
        more.push_back(wanted[i]);
        used |= AxisSet{1} << wanted[i];
      }
      if (more.size() == cut[dim].size()) continue;
      cut[dim] = more;
      result_.origins[as_size(tensor)][dim] = from;
      changed = true;
    }
    return changed;
  }

  const Graph& graph_;
  const Mesh& mesh_;
  Propagation result_;
  Heard heard_kinds_ = Heard::all;

  // Of the node that is visited.
  std::vector<Wish> wishes_;
  FactorCut factors_, asked_;
  std::vector<NodeId> heard_;  // by factor: the tensor whose wish it is
};

}  // namespace

Propagation propagate(const Graph& graph, const Mesh& mesh) {
  return Propagator(graph, mesh).run();
}

std::string dump(const Graph& graph, const Mesh& mesh, const Propagation& propagation) {
  std::string text = fmt::format("mesh {}\n", mesh.to_string());
  for (std::size_t id = 0; id < graph.nodes.size(); ++id) {
    text += fmt::format("{} [{}]\n", to_string(graph, static_cast<NodeId>(id)),
                        to_spec(propagation.cuts[id], mesh).to_string());
  }
  return text;
}

std::string explain(const Graph& graph, const Mesh& mesh, const Propagation& propagation,
                    NodeId node) {
  const Cut& cut = propagation.cuts[as_size(node)];
  std::string text =
      fmt::format("{} is cut as {}\n", to_string(graph, node), to_spec(cut, mesh).to_string());
  for (std::size_t dim = 0; dim < cut.size(); ++dim) {
    text += fmt::format("  dim {}: ", dim);
    if (cut[dim].empty()) {
      text += "whole\n";
      continue;
    }
    Cut one(1);
    one[0] = cut[dim];
    text += to_spec(one, mesh).to_string();
    // The way back to a mark: by the dim of each neighbour that the same axis cuts.
    NodeId at = node;
    std::size_t at_dim = dim;
    for (int hops = 0; hops < 1000 && !graph.node(at).mark; ++hops) {
      const NodeId from = propagation.origins[as_size(at)][at_dim];
      if (from < 0 || from == at) break;
      text += fmt::format(" from %{}", from);
      const Cut& next = propagation.cuts[as_size(from)];
      for (std::size_t d = 0; d < next.size(); ++d) {
        if (next[d].set() & cut[dim].set()) at_dim = d;
      }
      at = from;
    }
    if (graph.node(at).mark) text += ", marked" + in_scope(graph, graph.node(at).scope);
    text += '\n';
  }
  for (const Propagation::Conflict& conflict : propagation.conflicts) {
    if (conflict.node == node) text += "  conflict: " + conflict.text + '\n';
  }
  return text;
}

}  // namespace shardwise
