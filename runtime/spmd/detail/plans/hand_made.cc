#include "shardwise/runtime/spmd/detail/plans/hand_made.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "shardwise/runtime/spmd/detail/cut.h"
#include "shardwise/runtime/spmd/detail/plans/first_product.h"
#include "shardwise/runtime/spmd/detail/propagate.h"

namespace shardwise::detail {
namespace {

using Axes = std::vector<std::size_t>;  // of the mesh, by number

/// Makes plans from the mesh axes that cut.
class HandMadePlans {
 public:
  explicit HandMadePlans(Trials& trials) : trials_(trials) {
    for (std::size_t axis = 0; axis < trials.mesh().rank(); ++axis) {
      if (trials.mesh().axes()[axis].size > 1) axes_.push_back(axis);
    }
  }

  std::vector<HandMade> run() {
    std::vector<HandMade> plans;
    plans.push_back({"whole", choice(whole())});
    plans.push_back({"data", choice(with_batch(whole(), axes_))});
    plans.push_back({"fsdp", choice(with_weights(with_batch(whole(), axes_), axes_))});
    for (const std::size_t axis : axes_) {
      const std::string& name = trials_.mesh().axes()[axis].name;
      Axes others = axes_;
      std::erase(others, axis);
      const Cuts tensor = with_tensor(with_batch(whole(), others), axis);
      plans.push_back({"tensor over " + name, choice(tensor)});
      plans.push_back(
          {"experts over " + name, choice(with_experts(with_batch(whole(), others), axis))});
      if (others.empty()) continue;
      plans.push_back({"tensor over " + name + ", weights over the rest",
                       choice(with_weights(tensor, others))});
      // Some of the axes for weights, all for the batch.
      plans.push_back(
          {"fsdp over " + name, choice(with_weights(with_batch(whole(), axes_), {axis}))});
    }
    if (auto marked = as_marked()) plans.push_back({"as marked", *std::move(marked)});
    return plans;
  }

 private:
  using Cuts = std::vector<Cut>;  // by group

  const TensorType& type(std::size_t group) const { return trials_.groups()[group].type; }

  Cuts whole() const {
    Cuts cuts;
    for (const InputGroup& group : trials_.groups()) cuts.emplace_back(group.type.shape.size());
    return cuts;
  }

  /// True if the dim divides evenly with one more axis.
  bool divides(std::size_t group, const Cut& cut, std::size_t dim, std::size_t axis) const {
    const Mesh& mesh = trials_.mesh();
    const std::int64_t extent = type(group).shape[dim];
    return extent > 0 && extent % (ways(cut[dim], mesh) * mesh.axes()[axis].size) == 0;
  }

  /// Cuts dim 0 of data, as far as it divides.
  Cuts with_batch(Cuts cuts, const Axes& axes) const {
    for (std::size_t g = 0; g < cuts.size(); ++g) {
      if (!trials_.groups()[g].is_data) continue;
      for (const std::size_t axis : axes) {
        if (divides(g, cuts[g], 0, axis)) cuts[g][0].push_back(axis);
      }
    }
    return cuts;
  }

  /// Cuts weights and their state by the longest dim that divides; dims that are cut already come
  /// last.
  Cuts with_weights(Cuts cuts, const Axes& axes) const {
    for (std::size_t g = 0; g < cuts.size(); ++g) {
      if (trials_.groups()[g].is_data) continue;
      const Shape& shape = type(g).shape;
      std::vector<std::size_t> dims(shape.size());
      std::iota(dims.begin(), dims.end(), std::size_t{0});
      std::ranges::stable_sort(dims, [&, before = cuts[g]](std::size_t a, std::size_t b) {
        return std::tuple(!before[a].empty(), -shape[a]) <
               std::tuple(!before[b].empty(), -shape[b]);
      });
      for (const std::size_t axis : axes) {
        const auto dim = std::ranges::find_if(
            dims, [&](std::size_t one) { return divides(g, cuts[g], one, axis); });
        if (dim != dims.end()) cuts[g][*dim].push_back(axis);
      }
    }
    return cuts;
  }

  /// In the order of the program: a matrix whose data comes cut over the axis is cut by its rows,
  /// so that the sums are over the axis; any other by its columns.
  Cuts with_tensor(Cuts cuts, std::size_t axis) const {
    for (const auto& [product, group] : matrices()) {
      const std::vector<std::optional<PartitionSpec>> marks = marks_of(cuts, group);
      Graph graph = trials_.graph();
      for (Node& node : graph.nodes) node.mark.reset();
      mark_inputs(graph, marks);
      const Propagation told = propagate(graph, trials_.mesh());
      const NodeId node = graph.inputs[trials_.groups()[group].inputs[0]].node;
      const Cut& asked = told.cuts[as_size(node)];
      std::size_t dim = product.column;
      for (std::size_t d = 0; d < asked.size(); ++d) {
        if (asked[d].set() >> axis & 1) dim = d;
      }
      if (divides(group, cuts[group], dim, axis)) cuts[group][dim].push_back(axis);
    }
    return cuts;
  }

  struct Matrix {
    FirstProduct product;
    std::size_t group;
  };

  /// The groups of weights that a product or a look-up takes, in program order.
  std::vector<Matrix> matrices() const {
    std::vector<Matrix> all;
    for (std::size_t g = 0; g < trials_.groups().size(); ++g) {
      const InputGroup& group = trials_.groups()[g];
      if (group.is_data || group.type.shape.size() < 2) continue;
      auto product = first_product(trials_.graph(), trials_.graph().inputs[group.inputs[0]].node);
      if (product) all.push_back({*std::move(product), g});
    }
    std::ranges::stable_sort(
        all, [](const Matrix& a, const Matrix& b) { return a.product.place < b.product.place; });
    return all;
  }

  /// Cuts weights of three dims and more by their first.
  Cuts with_experts(Cuts cuts, std::size_t axis) const {
    for (std::size_t g = 0; g < cuts.size(); ++g) {
      const bool is_expert = !trials_.groups()[g].is_data && cuts[g].size() >= 3;
      if (is_expert && divides(g, cuts[g], 0, axis)) cuts[g][0].push_back(axis);
    }
    return cuts;
  }

  /// Marks by Graph::inputs, for the groups that are cut, except for this one.
  std::vector<std::optional<PartitionSpec>> marks_of(const Cuts& cuts, std::size_t but) const {
    std::vector<std::optional<PartitionSpec>> marks(trials_.graph().inputs.size());
    for (std::size_t g = 0; g < cuts.size(); ++g) {
      if (g == but || axes_of(cuts[g]) == 0) continue;
      for (const std::size_t input : trials_.groups()[g].inputs) {
        marks[input] = to_spec(cuts[g], trials_.mesh());
      }
    }
    return marks;
  }

  Choice choice(const Cuts& cuts) const {
    Choice made;
    for (std::size_t g = 0; g < cuts.size(); ++g) {
      made.push_back(trials_.number(g, to_spec(cuts[g], trials_.mesh())));
    }
    return made;
  }

  std::optional<Choice> as_marked() const {
    Choice made;
    bool is_any = false;
    for (std::size_t g = 0; g < trials_.groups().size(); ++g) {
      const InputGroup& group = trials_.groups()[g];
      const auto& mark = trials_.graph().node(trials_.graph().inputs[group.inputs[0]].node).mark;
      is_any = is_any || mark.has_value();
      made.push_back(
          trials_.number(g, mark ? *mark : PartitionSpec::replicated(group.type.shape.size())));
    }
    return is_any ? std::optional(made) : std::nullopt;
  }

  Trials& trials_;
  Axes axes_;
};

}  // namespace

std::vector<HandMade> hand_made(Trials& trials) { return HandMadePlans(trials).run(); }

}  // namespace shardwise::detail
