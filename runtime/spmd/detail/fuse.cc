#include "shardwise/runtime/spmd/detail/fuse.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "shardwise/runtime/ops/detail/row.h"

namespace shardwise {
namespace {

using Compute = PartitionedGraph::Compute;
constexpr std::size_t kNone = SIZE_MAX;

// A bucket lives until its last part is there: larger ones save little and keep gradients longer.
constexpr std::size_t kBucketBytes = std::size_t{512} << 10;

class Fuser {
 public:
  Fuser(const Graph& graph, const PartitionedGraph& partitioned, NanCheck nan_check)
      : graph_(graph),
        steps_(partitioned.steps),
        values_(partitioned.values),
        nan_check_(nan_check) {
    maker_.assign(values_.size(), kNone);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      visit_step(
          steps_[i], [](auto) {}, [&](auto made) { maker_[as_size(made)] = i; });
    }
    find_needed(partitioned);
  }

  std::vector<FusedStep> run() {
    join();
    std::vector<FusedStep> steps = ordered();
    join_moves(steps);
    return ordered();
  }

 private:
  /// Of an operation.
  PartitionedGraph::ValueId result(std::size_t step) const {
    return std::get<Compute>(steps_[step]).result;
  }

  Op op(std::size_t step) const {
    const auto* const compute = std::get_if<Compute>(&steps_[step]);
    if (compute == nullptr) return Op::input;
    return compute->only_converts ? Op::convert : graph_.node(compute->node).op;
  }

  template <class Body>
  void for_each_operand(std::size_t step, const Body& body) const {
    visit_step(steps_[step], body, [](auto) {});
  }

  /// A kernel can read the step's operand in its place.
  bool is_inlined(std::size_t step) const {
    return step != kNone && (op(step) == Op::constant || op(step) == Op::broadcast);
  }

  /// Which steps must be carried out. Constants and broadcasts are needed only if something else
  /// than an elementwise kernel reads them.
  void find_needed(const PartitionedGraph& partitioned) {
    needed_.assign(steps_.size(), false);
    for (const auto output : partitioned.outputs) need(output);
    for (std::size_t i = steps_.size(); i-- > 0;) {
      if (!needed_[i]) continue;
      for_each_operand(i, [&](auto operand) {
        const std::size_t from = maker_[as_size(operand)];
        if (is_elementwise(op(i)) && is_inlined(from)) {
          for_each_operand(from, [&](auto inner) {
            const std::size_t source = maker_[as_size(inner)];
            if (source == kNone || op(source) != Op::constant) need(inner);
          });
        } else {
          need(operand);
        }
      });
    }
  }

  void need(PartitionedGraph::ValueId value) {
    if (maker_[as_size(value)] != kNone) needed_[maker_[as_size(value)]] = true;
  }

  bool same_elements(std::size_t a, std::size_t b) const {
    const PartitionedGraph::Value &x = values_[as_size(result(a))],
                                  &y = values_[as_size(result(b))];
    return graph_.node(x.node).type.shape == graph_.node(y.node).type.shape && x.cut == y.cut;
  }

  std::size_t root(std::size_t step) {
    while (parent_[step] != step) step = parent_[step] = parent_[parent_[step]];
    return step;
  }

  /// Of a gradient. Such a step is not fused with one that is not: what it gives would live from
  /// the forward pass on.
  bool is_backward(std::size_t step) const {
    return graph_.node(std::get<Compute>(steps_[step]).node).backward;
  }

  /// Every step gets a level above those that it uses; only elementwise steps that use each other
  /// may share one, and are then one kernel. So kernels never wait for each other in a circle.
  void join() {
    level_.assign(steps_.size(), 0);
    parent_.resize(steps_.size());
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      parent_[i] = i;
      if (!needed_[i]) continue;
      const bool fusible = is_elementwise(op(i));
      joins_.clear();
      const auto use = [&](PartitionedGraph::ValueId operand) {
        const std::size_t from = maker_[as_size(operand)];
        if (from == kNone) return;
        const bool joins = fusible && nan_check_ == NanCheck::off && is_elementwise(op(from)) &&
                           same_elements(i, from) && is_backward(i) == is_backward(from);
        level_[i] = std::max(level_[i], level_[from] + (joins ? 0 : 1));
        if (joins) joins_.push_back(from);
      };
      for_each_operand(i, [&](auto operand) {
        const std::size_t from = maker_[as_size(operand)];
        if (fusible && is_inlined(from)) {
          for_each_operand(from, [&](auto inner) {
            const std::size_t source = maker_[as_size(inner)];
            if (source != kNone) level_[i] = std::max(level_[i], level_[source] + 1);
          });
        } else {
          use(operand);
        }
      });
      for (const std::size_t from : joins_) {
        if (level_[from] == level_[i]) parent_[root(i)] = root(from);
      }
    }
  }

  /// Sums that are to be combined over the same devices go together, up to a limit. A move's height
  /// is the length of the longest chain of combining moves that wait for it. Moves of one height do
  /// not wait for each other, and a move that waits for one of them is lower. So buckets never wait
  /// in a circle.
  void join_moves(const std::vector<FusedStep>& order) {
    std::vector<std::int64_t> height(steps_.size(), 0);  // by root
    for (std::size_t g = order.size(); g-- > 0;) {
      const std::size_t here = root(order[g].steps.front());
      const std::int64_t below = height[here] + (combines(order[g].steps.front()) ? 1 : 0);
      for (const std::size_t step : order[g].steps) {
        for_each_source(step, [&](std::size_t from) {
          if (root(from) == here) return;
          height[root(from)] = std::max(height[root(from)], below);
        });
      }
    }
    struct Bucket {
      std::size_t step;
      std::size_t bytes;
    };
    std::map<std::tuple<CollectiveKind, AxisSet, AxisSet, Reduction, std::int64_t>, Bucket> open;
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (!needed_[i] || !combines(i)) continue;
      const auto& move = std::get<PartitionedGraph::Move>(steps_[i]);
      const PartitionedGraph::Value& from = values_[as_size(move.from)];
      const std::size_t bytes = std::max(move.bytes, move.wire_bytes);
      const auto [at, is_new] = open.try_emplace(
          {move.kind, move.axes, changed_axes(from.cut, values_[as_size(move.to)].cut),
           values_[as_size(move.to)].reduction, height[i]},
          Bucket{i, bytes});
      if (is_new) continue;
      if (at->second.bytes + bytes > kBucketBytes) {
        at->second = {i, bytes};
      } else {
        parent_[root(i)] = root(at->second.step);
        at->second.bytes += bytes;
      }
    }
  }

  bool combines(std::size_t step) const {
    const auto* const move = std::get_if<PartitionedGraph::Move>(&steps_[step]);
    return move != nullptr && (move->kind == CollectiveKind::all_reduce ||
                               move->kind == CollectiveKind::reduce_scatter);
  }

  /// Calls body(step) for each step that makes what this one reads.
  template <class Body>
  void for_each_source(std::size_t step, const Body& body) const {
    const auto visit = [&](PartitionedGraph::ValueId value) {
      const std::size_t from = maker_[as_size(value)];
      if (from != kNone && needed_[from]) body(from);
    };
    for_each_operand(step, [&](auto operand) {
      const std::size_t from = maker_[as_size(operand)];
      if (is_elementwise(op(step)) && is_inlined(from)) {
        for_each_operand(from, visit);
      } else {
        visit(operand);
      }
    });
  }

  std::vector<FusedStep> ordered() {
    // Groups by their first step; what they wait for.
    std::vector<std::size_t> group_of(steps_.size(), kNone);
    std::vector<FusedStep> groups;
    std::vector<std::size_t> group_of_root(steps_.size(), kNone);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (!needed_[i]) continue;
      std::size_t& group = group_of_root[root(i)];
      if (group == kNone) {
        group = groups.size();
        groups.push_back({{}, is_elementwise(op(i))});
      }
      group_of[i] = group;
      groups[group].steps.push_back(i);
    }
    std::vector<std::vector<std::size_t>> followers(groups.size());
    std::vector<std::size_t> waits(groups.size(), 0);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (!needed_[i]) continue;
      for_each_source(i, [&](std::size_t from) {
        if (group_of[from] == group_of[i]) return;
        followers[group_of[from]].push_back(group_of[i]);
        ++waits[group_of[i]];
      });
    }
    // The first in the old order that is ready, so that values live no longer than before.
    std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
    for (std::size_t group = 0; group < groups.size(); ++group) {
      if (waits[group] == 0) ready.push(group);
    }
    std::vector<FusedStep> order;
    order.reserve(groups.size());
    while (!ready.empty()) {
      const std::size_t group = ready.top();
      ready.pop();
      for (const std::size_t follower : followers[group]) {
        if (--waits[follower] == 0) ready.push(follower);
      }
      order.push_back(std::move(groups[group]));
    }
    return order;
  }

  const Graph& graph_;
  const std::vector<PartitionedGraph::Step>& steps_;
  const std::vector<PartitionedGraph::Value>& values_;
  const NanCheck nan_check_;
  std::vector<std::size_t> maker_;  ///< by value: its step
  std::vector<bool> needed_;        ///< by step
  std::vector<std::size_t> level_, parent_, joins_;
};

}  // namespace

std::vector<FusedStep> fuse(const Graph& graph, const PartitionedGraph& partitioned,
                            NanCheck nan_check) {
  return Fuser(graph, partitioned, nan_check).run();
}

}  // namespace shardwise
