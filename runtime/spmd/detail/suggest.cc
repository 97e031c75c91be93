#include "shardwise/runtime/spmd/detail/suggest.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "shardwise/runtime/spmd/detail/out_of_memory.h"
#include "shardwise/runtime/spmd/detail/planned.h"

namespace shardwise {
namespace {

// The number of inputs that are tried, the largest first: cutting them gains most.
constexpr std::size_t kInputsTried = 4;

// The number of marks that are proposed together.
constexpr std::size_t kMostMarks = 4;

// Total of planned nodes for all attempts, so that advice on a large program takes seconds.
constexpr std::size_t kMostNodes = 200'000;

constexpr const char* kNothing = "no marks were found with which it fits";

/// The cut with one more axis on the longest dim that is whole and that the axis divides.
std::optional<Cut> cut_further(const Cut& cut, const Shape& shape, std::size_t axis,
                               const Mesh& mesh) {
  const std::int64_t size = mesh.axes()[axis].size;
  if (size == 1 || (axes_of(cut) >> axis & 1)) return std::nullopt;
  std::optional<std::size_t> best;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    if (!cut[dim].empty() || shape[dim] % size != 0 || shape[dim] == 0) continue;
    if (!best || shape[dim] > shape[*best]) best = dim;
  }
  if (!best) return std::nullopt;
  Cut further = cut;
  further[*best].push_back(axis);
  return further;
}

/// One input cut differently.
struct Remark {
  std::size_t input;
  Cut cut;
};

/// Proposed marks and the resulting cost.
struct Proposal {
  std::vector<Remark> marks;
  std::string text;
  std::size_t peak_bytes;
};

class Adviser {
 public:
  Adviser(const Graph& graph, const Mesh& mesh, const CompileOptions& options, std::size_t capacity)
      : graph_(graph), mesh_(mesh), options_(options), capacity_(capacity) {
    const Propagation now = propagate(graph, mesh);
    for (const GraphInput& input : graph.inputs) cuts_.push_back(now.cuts[as_size(input.node)]);
  }

  std::string run() {
    std::vector<Proposal> single = try_single();
    if (!fits()) try_several(std::move(single));
    for (std::size_t axis = 0; axis < mesh_.rank() && !fits(); ++axis) try_all_weights(axis);
    if (!best_) return kNothing;
    return fmt::format("{} with {}: peak {}", fits() ? "it fits" : "the least found is",
                       best_->text, detail::mebibytes(best_->peak_bytes));
  }

 private:
  bool fits() const { return best_ && best_->peak_bytes <= capacity_; }
  const TensorType& type(std::size_t input) const {
    return graph_.node(graph_.inputs[input].node).type;
  }

  /// The inputs with the most bytes on one device.
  std::vector<std::size_t> largest_inputs() const {
    std::vector<std::pair<std::size_t, std::size_t>> sizes;
    for (std::size_t i = 0; i < cuts_.size(); ++i) {
      const std::size_t bytes = num_bytes(type(i).shape, size_bytes(type(i).dtype));
      sizes.emplace_back(bytes / as_size(ways(axes_of(cuts_[i]), mesh_)), i);
    }
    std::stable_sort(sizes.begin(), sizes.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < std::min(sizes.size(), kInputsTried); ++i) {
      order.push_back(sizes[i].second);
    }
    return order;
  }

  /// Tries each of the largest inputs alone, until one suffices.
  std::vector<Proposal> try_single() {
    std::vector<Proposal> tried;
    for (const std::size_t input : largest_inputs()) {
      for (std::size_t axis = 0; axis < mesh_.rank() && !fits(); ++axis) {
        const std::optional<Cut> further =
            cut_further(cuts_[input], type(input).shape, axis, mesh_);
        if (!further) continue;
        if (std::optional<Proposal> one = plan({{input, *further}})) tried.push_back(*one);
      }
    }
    return tried;
  }

  /// Takes the best single mark first, then marks that improve it.
  void try_several(std::vector<Proposal> single) {
    std::stable_sort(single.begin(), single.end(), [](const Proposal& a, const Proposal& b) {
      return a.peak_bytes < b.peak_bytes;
    });
    if (single.empty()) return;
    Proposal together = single.front();
    for (std::size_t i = 1; i < single.size() && !fits(); ++i) {
      const Remark& next = single[i].marks.front();
      if (together.marks.size() == kMostMarks) break;
      const bool is_marked =
          std::any_of(together.marks.begin(), together.marks.end(),
                      [&](const Remark& mark) { return mark.input == next.input; });
      if (is_marked) continue;
      std::vector<Remark> marks = together.marks;
      marks.push_back(next);
      const std::optional<Proposal> more = plan(std::move(marks));
      if (more && more->peak_bytes < together.peak_bytes) together = *more;
    }
  }

  void try_all_weights(std::size_t axis) {
    std::vector<Remark> marks;
    for (std::size_t i = 0; i < graph_.inputs.size(); ++i) {
      const MemoryKind kind = graph_.inputs[i].kind;
      if (kind != MemoryKind::parameter && kind != MemoryKind::optimizer) continue;
      std::optional<Cut> further = cut_further(cuts_[i], type(i).shape, axis, mesh_);
      if (further) marks.push_back({i, std::move(*further)});
    }
    if (marks.empty()) return;
    plan(std::move(marks),
         fmt::format("all weights and optimizer state cut over {} too", mesh_.axes()[axis].name));
  }

  /// Plans the program with these marks and keeps the best. Returns nothing if that cannot be
  /// planned, or if enough was planned already.
  std::optional<Proposal> plan(std::vector<Remark> marks, std::string text = "") {
    if (nodes_ + graph_.nodes.size() > kMostNodes && nodes_ > 0) return std::nullopt;
    nodes_ += graph_.nodes.size();
    auto other = std::make_shared<Graph>(graph_);
    CompileOptions changed = options_;
    changed.moves = MovePlans::left_out;
    for (const Remark& mark : marks) {
      const PartitionSpec spec = to_spec(mark.cut, mesh_);
      other->node(graph_.inputs[mark.input].node).mark = spec;
      if (mark.input < changed.input_specs.size()) changed.input_specs[mark.input] = spec;
    }
    if (text.empty()) text = text_of(marks);
    try {
      const std::size_t peak = PlannedProgram(other, mesh_, changed).memory(0).peak_bytes;
      Proposal one{std::move(marks), std::move(text), peak};
      if (!best_ || peak < best_->peak_bytes) best_ = one;
      return one;
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }

  std::string text_of(const std::vector<Remark>& marks) const {
    std::string text;
    for (const Remark& mark : marks) {
      text += fmt::format("{}\"{}\" cut as {}", text.empty() ? "" : " and ",
                          graph_.inputs[mark.input].label, to_spec(mark.cut, mesh_).to_string());
    }
    return text;
  }

  const Graph& graph_;
  const Mesh& mesh_;
  const CompileOptions& options_;
  const std::size_t capacity_;
  std::vector<Cut> cuts_;  ///< by Graph::inputs
  std::size_t nodes_ = 0;  ///< planned so far
  std::optional<Proposal> best_;
};

}  // namespace

std::string suggest(const Graph& graph, const Mesh& mesh, const CompileOptions& options,
                    std::size_t capacity_bytes) {
  try {
    return Adviser(graph, mesh, options, capacity_bytes).run();
  } catch (const std::exception&) {
    return kNothing;
  }
}

}  // namespace shardwise
