#include "shardwise/runtime/spmd/detail/html/memory_curve.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <utility>

#include "shardwise/runtime/spmd/detail/memory_plan.h"
#include "shardwise/runtime/spmd/executable.h"

namespace shardwise::detail {
namespace {

using ValueId = Program::ValueId;

constexpr std::size_t kLargest = 6;
constexpr std::array<std::string_view, 8> kKinds = {"parameter", "optimizer",  "loader",
                                                    "array",     "checkpoint", "activation",
                                                    "gradient",  "collective"};

std::size_t kind_number(std::string_view kind) {
  return as_size(std::ranges::find(kKinds, kind) - kKinds.begin());
}

/// The values that have memory while steps go by.
class Sweep {
 public:
  explicit Sweep(const PlannedProgram& planned) : planned_(planned) {
    const std::size_t steps = planned.lowered.program.steps().size();
    begins_.resize(steps);
    ends_.resize(steps);
    const MemoryPlan& plan = planned.plan;
    for (const ValueId input : planned.lowered.inputs) add_always(input);
    for (std::size_t o = 0; o < planned.lowered.outputs.size(); ++o) {
      const bool takes_memory = plan.is_made[o] && plan.donated[o] < 0;
      if (takes_memory) add_always(planned.lowered.outputs[o]);
    }
    std::ranges::stable_sort(always_, std::greater(), [&](ValueId v) { return bytes(v); });
    for (std::size_t v = 0; v < plan.homes.size(); ++v) {
      const Lifetime& life = plan.lifetimes[v];
      const bool has_place = plan.is_placed(v) && life.first <= life.last && plan.bytes[v] > 0;
      if (!has_place || life.last < 0) continue;
      begins_[as_size(life.first)].push_back(static_cast<ValueId>(v));
      ends_[as_size(life.last)].push_back(static_cast<ValueId>(v));
    }
  }

  std::size_t steps() const { return begins_.size(); }
  const std::vector<ValueId>& always() const { return always_; }

  /// Moves to a step, or back to the first; after the last step, only permanent values are left.
  void go_to(std::size_t step) {
    for (; next_ <= step && next_ < steps(); ++next_) {
      if (next_ > 0) {
        for (const ValueId v : ends_[next_ - 1]) change(v, false);
      }
      for (const ValueId v : begins_[next_]) change(v, true);
    }
  }

  std::size_t total() const { return total_; }

  CurvePoint point(std::size_t step) const {
    CurvePoint point{step, {bytes_.begin(), bytes_.end()}, {}};
    for (const auto& [size, value] : live_) {
      if (point.largest.size() == kLargest) break;
      point.largest.push_back(value);
    }
    return point;
  }

 private:
  std::size_t bytes(ValueId v) const { return planned_.plan.bytes[as_size(v)]; }

  void add_always(ValueId v) {
    if (bytes(v) == 0) return;
    always_.push_back(v);
    bytes_[kind_number(kind_name(planned_, v))] += bytes(v);
    total_ += bytes(v);
  }

  void change(ValueId v, bool begins) {
    std::size_t& of_kind = bytes_[kind_number(kind_name(planned_, v))];
    const std::pair<std::int64_t, ValueId> entry{-static_cast<std::int64_t>(bytes(v)), v};
    if (begins) {
      of_kind += bytes(v);
      total_ += bytes(v);
      live_.insert(entry);
    } else {
      of_kind -= bytes(v);
      total_ -= bytes(v);
      live_.erase(entry);
    }
  }

  const PlannedProgram& planned_;
  std::vector<ValueId> always_;
  std::vector<std::vector<ValueId>> begins_, ends_;  ///< by step
  std::array<std::size_t, kKinds.size()> bytes_{};
  std::size_t total_ = 0, next_ = 0;
  std::set<std::pair<std::int64_t, ValueId>> live_;  ///< the largest first
};

/// The lowest and the highest point of each stretch, in order.
std::vector<std::size_t> extremes(const std::vector<std::size_t>& totals, std::size_t most_points) {
  const std::size_t stretches = std::max<std::size_t>(most_points / 2, 1);
  std::set<std::size_t> steps;
  for (std::size_t i = 0; i < stretches; ++i) {
    const auto begin = totals.begin() + static_cast<std::ptrdiff_t>(i * totals.size() / stretches),
               end = totals.begin() +
                     static_cast<std::ptrdiff_t>((i + 1) * totals.size() / stretches);
    if (begin == end) continue;
    steps.insert(as_size(std::min_element(begin, end) - totals.begin()));
    steps.insert(as_size(std::max_element(begin, end) - totals.begin()));
  }
  return {steps.begin(), steps.end()};
}

}  // namespace

std::string_view kind_name(const PlannedProgram& planned, ValueId value) {
  const LoweredProgram& lowered = planned.lowered;
  const auto output = std::ranges::find(lowered.outputs, value);
  MemoryKind kind = lowered.program.value(value).kind;
  const bool is_made = output != lowered.outputs.end() &&
                       planned.plan.is_made[as_size(output - lowered.outputs.begin())];
  if (is_made) {
    kind = output_kind(*planned.graph, planned.plan, as_size(output - lowered.outputs.begin()));
  }
  const NodeId node = lowered.nodes[as_size(value)];
  return FullestStep::Held{{}, kind, planned.graph->node(node).backward, {}, {}, 0}.kind_name();
}

MemoryCurve memory_curve(const PlannedProgram& planned, std::size_t most_points) {
  MemoryCurve curve{.kinds = {kKinds.begin(), kKinds.end()}};
  Sweep sweep(planned);
  curve.steps = sweep.steps();
  const std::size_t always = std::min(sweep.always().size(), kLargest);
  curve.always.assign(sweep.always().begin(),
                      sweep.always().begin() + static_cast<std::ptrdiff_t>(always));
  if (curve.steps == 0) {
    curve.points.push_back(sweep.point(0));
    return curve;
  }
  std::vector<std::size_t> totals;
  for (std::size_t step = 0; step < curve.steps; ++step) {
    sweep.go_to(step);
    totals.push_back(sweep.total());
  }
  Sweep again(planned);
  for (const std::size_t step : extremes(totals, std::min(most_points, 2 * curve.steps))) {
    again.go_to(step);
    curve.points.push_back(again.point(step));
  }
  const auto peak = as_size(std::ranges::max_element(totals) - totals.begin());
  curve.fullest =
      as_size(std::ranges::find(curve.points, peak, &CurvePoint::step) - curve.points.begin());
  return curve;
}

}  // namespace shardwise::detail
