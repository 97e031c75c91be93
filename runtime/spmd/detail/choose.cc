#include "shardwise/runtime/spmd/detail/choose.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "shardwise/runtime/spmd/detail/cost.h"

namespace shardwise {
namespace {

// The weight of an operation relative to a byte that is moved. An emulated device multiplies and
// adds some 5e10 times a second and moves some 5e9 bytes: no device should repeat the work of all
// others to save a few bytes.
constexpr double kBytesPerOperation = 0.1;

// With more combinations than this, axes are assigned one after another.
constexpr std::size_t kMostCombinations = 1024;

constexpr std::int32_t kNowhere = -1;

class Chooser {
 public:
  Chooser(const ChoiceProblem& problem, const Mesh& mesh) : problem_(problem), mesh_(mesh) {
    for (const OperandState& operand : problem.operands) {
      for (const Cut* const cut : operand.cuts) look_at(*cut, *operand.dims);
    }
    look_at(problem.wanted, problem.rule.result);
    for (const std::size_t axis : axis_numbers_) find_options(axis, problem.rule.factors.size());
  }

  FactorChoice best(std::string* notes) {
    std::size_t combinations = 1;
    for (const auto& options : options_) {
      combinations = std::min(combinations * options.size(), kMostCombinations + 1);
    }
    picks_.assign(options_.size(), 0);
    if (combinations > kMostCombinations) {
      descend();
    } else {
      do {
        look(notes);
      } while (next());
    }
    return std::move(best_);
  }

 private:
  void look_at(const Cut& cut, const DimFactors& dims) {
    for (const AxisList& list : cut) {
      for (const std::uint8_t axis : list) {
        if ((axes_ | problem_.carried) >> axis & 1) continue;
        axes_ |= AxisSet{1} << axis;
        axis_numbers_.push_back(axis);
      }
    }
    FactorCut& seen = references_.emplace_back(problem_.rule.factors.size());
    project(cut, dims, problem_.rule.factors, mesh_, seen);
  }

  /// The factors on which a tensor has the axis. If none may keep it, any that could take it.
  void find_options(std::size_t axis, std::size_t count) {
    std::vector<std::int32_t> factors;
    for (const FactorCut& seen : references_) {
      for (std::size_t f = 0; f < count; ++f) {
        if (!(seen[f].set() >> axis & 1)) continue;
        if (problem_.rule.factors[f].kind == Factor::Kind::need_replication) continue;
        const auto factor = static_cast<std::int32_t>(f);
        if (std::find(factors.begin(), factors.end(), factor) == factors.end()) {
          factors.push_back(factor);
        }
      }
    }
    if (factors.empty()) {
      for (std::size_t f = 0; f < count; ++f) {
        if (problem_.rule.factors[f].kind == Factor::Kind::pass_through &&
            problem_.rule.factors[f].size >= mesh_.axes()[axis].size) {
          factors.push_back(static_cast<std::int32_t>(f));
        }
      }
    }
    factors.push_back(kNowhere);
    options_.push_back(std::move(factors));
  }

  bool next() {
    for (std::size_t i = 0; i < picks_.size(); ++i) {
      if (++picks_[i] < options_[i].size()) return true;
      picks_[i] = 0;
    }
    return false;
  }

  void descend() {
    for (std::size_t i = 0; i < picks_.size(); ++i) picks_[i] = options_[i].size() - 1;
    look(nullptr);
    for (std::size_t i = 0; i < picks_.size(); ++i) {
      std::size_t kept = picks_[i];
      for (std::size_t pick = 0; pick < options_[i].size(); ++pick) {
        picks_[i] = pick;
        if (look(nullptr)) kept = pick;
      }
      picks_[i] = kept;
    }
  }

  /// A factor's axes, in a tensor's order; axes that the tensor lacks come last. If they are just
  /// the tensor's axes, its tiles come along.
  AxisList in_order(std::size_t factor, AxisSet axes) const {
    const AxisList* order = nullptr;
    int most = 0;
    for (std::size_t i = references_.size(); i-- > 0;) {  // the wanted result comes first
      const int shared = std::popcount(references_[i][factor].set() & axes);
      if (shared <= most) continue;
      most = shared;
      order = &references_[i][factor];
    }
    AxisList list;
    for (std::size_t i = 0; order != nullptr && i < order->size(); ++i) {
      if (axes >> (*order)[i] & 1) list.push_back((*order)[i]);
    }
    if (order != nullptr && order->set() == axes) return *order;
    for (const std::size_t axis : axis_numbers_) {
      if ((axes & ~list.set()) >> axis & 1) list.push_back(axis);
    }
    return list;
  }

  /// Weighs the current picks. True if they are the best so far.
  bool look(std::string* notes) {
    const FactorRule& rule = problem_.rule;
    std::vector<AxisSet> sets(rule.factors.size(), 0);
    for (std::size_t i = 0; i < picks_.size(); ++i) {
      const std::int32_t factor = options_[i][picks_[i]];
      if (factor != kNowhere) sets[as_size(factor)] |= AxisSet{1} << axis_numbers_[i];
    }
    FactorChoice choice;
    choice.factors.resize(rule.factors.size());
    choice.operations = 1;
    for (std::size_t f = 0; f < rule.factors.size(); ++f) {
      if (sets[f] != 0) choice.factors[f] = in_order(f, sets[f]);
      if (problem_.multiplies) {
        choice.operations *=
            static_cast<double>(tile_extent(rule.factors[f].size, choice.factors[f], mesh_));
      }
      if (rule.factors[f].kind == Factor::Kind::reduction) choice.partial |= sets[f];
    }
    if (!is_box(choice.factors, rule.result, rule.factors, mesh_)) return false;
    for (const OperandState& operand : problem_.operands) {
      if (!is_box(choice.factors, *operand.dims, rule.factors, mesh_)) return false;
    }
    choice.result = cut_of(choice.factors, rule.result, rule.factors, mesh_);
    if (!problem_.multiplies) choice.operations = elements(choice);
    choice.bytes = operand_bytes(choice.factors) + result_bytes(choice);
    const double cost = choice.bytes + choice.operations * kBytesPerOperation;
    if (notes) note(choice, *notes);
    if (found_ && cost >= best_cost_) return false;
    found_ = true;
    best_cost_ = cost;
    best_ = std::move(choice);
    return true;
  }

  /// Elements of the largest part of a tensor.
  double elements(const FactorChoice& choice) const {
    double most = part_elements(problem_.type.shape, choice.result, mesh_);
    for (const OperandState& operand : problem_.operands) {
      const Cut cut = part_of(operand, choice.factors);
      most = std::max(most, part_elements(operand.type->shape, cut, mesh_));
    }
    return most;
  }

  Cut part_of(const OperandState& operand, const FactorCut& factors) const {
    return cut_of(factors, *operand.dims, problem_.rule.factors, mesh_);
  }

  double operand_bytes(const FactorCut& factors) const {
    double bytes = 0;
    for (std::size_t i = 0; i < problem_.operands.size(); ++i) {
      const OperandState& operand = problem_.operands[i];
      bool counted = false;  // x * x reads x once
      for (std::size_t j = 0; j < i; ++j) {
        counted |= problem_.operands[j].node == operand.node &&
                   *problem_.operands[j].dims == *operand.dims;
      }
      if (counted) continue;
      const Cut needed = part_of(operand, factors);
      const double element = static_cast<double>(size_bytes(operand.type->dtype));
      double least = -1;
      for (std::size_t c = 0; c < operand.cuts.size(); ++c) {
        const Cut& have = *operand.cuts[c];
        if (has_windows(have) && !holds(operand.type->shape, have, needed, mesh_)) continue;
        double cost = element * missing_elements(operand.type->shape, have, needed, mesh_);
        if (c == 0 && (operand.partial & ~problem_.carried) != 0) {
          const Cut combined = combined_cut(have, operand.partial, needed);
          cost = combine_bytes(operand.is_wide ? sum_type(*operand.type) : *operand.type, combined,
                               operand.partial, mesh_) +
                 element * missing_elements(operand.type->shape, combined, needed, mesh_);
        }
        if (least < 0 || cost < least) least = cost;
      }
      bytes += least;
    }
    return bytes;
  }

  double result_bytes(const FactorChoice& choice) const {
    const Cut combined = combined_cut(choice.result, choice.partial, problem_.wanted);
    // A finer cut than wanted is harmless unless a mark fixes the cut: users that need more gather
    // it.
    bool refines = !problem_.exact;
    for (std::size_t dim = 0; dim < combined.size(); ++dim) {
      refines &= problem_.wanted[dim].is_prefix_of(combined[dim]);
    }
    const double combination =
        problem_.share *
        combine_bytes(is_rounded(problem_.rule.reduction) ? sum_type(problem_.type) : problem_.type,
                      combined, choice.partial, mesh_);
    if (refines) return combination;
    return combination +
           static_cast<double>(size_bytes(problem_.type.dtype)) *
               missing_elements(problem_.type.shape, combined, problem_.wanted, mesh_);
  }

  void note(const FactorChoice& choice, std::string& notes) const {
    std::string text;
    for (const OperandState& operand : problem_.operands) {
      text += fmt::format("{}{}", text.empty() ? "" : " ; ",
                          to_text(part_of(operand, choice.factors), mesh_));
    }
    notes += fmt::format("  ({}) -> {}{}: {:.0f} bytes, {:.0f} operations\n", text,
                         to_text(choice.result, mesh_), choice.partial ? ", parts of a sum" : "",
                         choice.bytes, choice.operations);
  }

  const ChoiceProblem& problem_;
  const Mesh& mesh_;
  AxisSet axes_ = 0;
  std::vector<FactorCut>
      references_;  ///< how each tensor has the factors now; the wanted result last
  /// The axes that cut a tensor, in order of appearance, so that no choice depends on the mesh's
  /// order of axes.
  std::vector<std::size_t> axis_numbers_;
  std::vector<std::vector<std::int32_t>> options_;  ///< by axis; kNowhere is the last
  std::vector<std::size_t> picks_;
  bool found_ = false;
  double best_cost_ = 0;
  FactorChoice best_;
};

}  // namespace

Cut combined_cut(const Cut& natural, AxisSet partial, const Cut& with_windows) {
  Cut cut = natural;
  const Cut wanted = without_windows(with_windows);
  for (std::size_t dim = 0; dim < cut.size(); ++dim) {
    if (!natural[dim].is_prefix_of(wanted[dim])) continue;
    for (std::size_t i = natural[dim].size(); i < wanted[dim].size(); ++i) {
      if (!(partial >> wanted[dim][i] & 1)) break;
      cut[dim].push_back(wanted[dim][i]);
    }
    if (cut[dim].size() == wanted[dim].size()) cut[dim] = wanted[dim];
  }
  return cut;
}

FactorChoice choose(const ChoiceProblem& problem, const Mesh& mesh, std::string* notes) {
  return Chooser(problem, mesh).best(notes);
}

}  // namespace shardwise
