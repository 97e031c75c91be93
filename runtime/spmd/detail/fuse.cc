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

// A bucket lives until its last part exists: larger ones save little and keep gradients longer. The
// parts of a sum that is scattered are larger than the sum, so only small ones wait.
constexpr std::size_t kBucketBytes = std::size_t{512} << 10;
constexpr std::size_t kWaitingScatteredBytes = std::size_t{16} << 10;

class Fuser {
 public:
  Fuser(const Graph& graph, const PartitionedGraph& partitioned, NanCheck nan_check)
      : graph_(graph),
        steps_(partitioned.steps),
        values_(partitioned.values),
        outputs_(partitioned.outputs),
        nan_check_(nan_check) {
    maker_.assign(values_.size(), kNone);
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      visit_step(
          steps_[i], [](auto) {}, [&](auto made) { maker_[as_size(made)] = i; });
    }
    find_needed();
  }

  std::vector<FusedStep> run() {
    join();
    std::vector<FusedStep> steps = ordered();
    join_moves(steps);
    return ordered();
  }

 private:
  /// The result of an operation.
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

  /// True if a kernel can read the step's operand in its place.
  bool is_inlined(std::size_t step) const {
    return step != kNone && (op(step) == Op::constant || op(step) == Op::broadcast);
  }

  /// Finds the steps that must run. Constants and broadcasts are needed only if something other
  /// than an elementwise kernel reads them.
  void find_needed() {
    needed_.assign(steps_.size(), false);
    for (const auto output : outputs_) need(output);
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

  /// True for steps of a gradient. Such a step is not fused with others, since its result would
  /// live from the forward pass on.
  bool is_backward(std::size_t step) const {
    return graph_.node(std::get<Compute>(steps_[step]).node).backward;
  }

  /// Every step gets a level above those of its operands; only elementwise steps that use each
  /// other may share one, and are then one kernel. So kernels never wait for each other in a
  /// circle.
  void join() {
    level_.assign(steps_.size(), 0);
    parent_.resize(steps_.size());
    ready_.assign(steps_.size(), 0);
    members_.resize(steps_.size() + 1);
    find_readers();
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      parent_[i] = i;
      members_[i] = {i};
      if (!needed_[i]) continue;
      joins_.clear();
      others_.clear();
      for_each_operand(i, [&](auto operand) {
        const std::size_t from = maker_[as_size(operand)];
        if (is_elementwise(op(i)) && is_inlined(from)) {
          for_each_operand(from, [&](auto inner) { use(maker_[as_size(inner)]); });
        } else if (may_join(i, from)) {
          joins_.push_back(from);
        } else {
          use(from);
        }
      });
      while (const std::size_t* const from = first_apart(i)) {
        others_.push_back(*from);
        joins_.erase(joins_.begin() + (from - joins_.data()));
      }
      for (const std::size_t from : joins_) merge(from, i);
      ready_[root(i)] = std::max(ready_[root(i)], ready_of_others(i));
    }
  }

  void use(std::size_t from) {
    if (from != kNone) others_.push_back(from);
  }

  bool may_join(std::size_t step, std::size_t from) const {
    return from != kNone && is_elementwise(op(step)) && nan_check_ == NanCheck::off &&
           is_elementwise(op(from)) && same_elements(step, from) &&
           is_backward(step) == is_backward(from) && kernel(step) == kernel(from);
  }

  /// The scope of a kernel of attention, whose operations join no others. -1: no such kernel.
  std::int32_t kernel(std::size_t step) const {
    const std::int32_t scope = graph_.node(std::get<Compute>(steps_[step]).node).scope;
    return is_of_fused_attention(graph_, scope) ? scope : -1;
  }

  /// The first of joins_ that must not be one kernel with the step: it is on a lower level, or its
  /// operands would have to be kept for it. Sets the step's level.
  const std::size_t* first_apart(std::size_t step) {
    level_[step] = 0;
    for (const std::size_t from : others_) {
      level_[step] = std::max(level_[step], level_[from] + 1);
    }
    for (const std::size_t from : joins_) level_[step] = std::max(level_[step], level_[from]);
    std::size_t ready = ready_of_others(step);
    for (const std::size_t from : joins_) ready = std::max(ready, ready_[root(from)]);
    for (const std::size_t& from : joins_) {
      if (level_[from] < level_[step] || (ready_[root(from)] < ready && is_smaller_done(from))) {
        return &from;
      }
    }
    return nullptr;
  }

  /// The last step, in the old order, that the step waits for.
  std::size_t ready_of_others(std::size_t step) {
    std::size_t ready = 0;
    for (const std::size_t from : others_) ready = std::max(ready, ready_[root(from)]);
    return is_elementwise(op(step)) ? ready : std::max(ready, step);
  }

  /// True if the results of a step's kernel take less memory than the operands that live only for
  /// it: so parts of a sum are added as they are made.
  bool is_smaller_done(std::size_t step) {
    const std::size_t kernel = root(step);
    std::size_t given = 0, taken = 0;
    reads_.clear();
    for (const std::size_t member : members_[kernel]) {
      const auto& readers = readers_[as_size(base_[as_size(result(member))])];
      const auto is_outside = [&](std::size_t reader) { return root_or_self(reader) != kernel; };
      if (std::any_of(readers.begin(), readers.end(), is_outside)) given += element_bytes(member);
      for_each_operand(member, [&](auto operand) {
        const std::size_t from = maker_[as_size(operand)];
        const auto at = base_[as_size(operand)];
        if (from == kNone || is_inlined(from) || maker_[as_size(at)] == kNone) return;
        if (root_or_self(from) == kernel || std::ranges::count(reads_, at) > 0) return;
        reads_.push_back(at);
        const auto is_later = [&](std::size_t reader) {
          return reader > ready_[kernel] && is_outside(reader);
        };
        const auto& others = readers_[as_size(at)];
        if (std::none_of(others.begin(), others.end(), is_later)) {
          taken += size_bytes(type_of(graph_, values_[as_size(operand)]).dtype);
        }
      });
    }
    return taken > given;
  }

  std::size_t element_bytes(std::size_t step) const {
    return size_bytes(type_of(graph_, values_[as_size(result(step))]).dtype);
  }

  /// Steps that join() has not come to are alone, and so is the end.
  std::size_t root_or_self(std::size_t step) { return members_[step].empty() ? step : root(step); }

  void merge(std::size_t from, std::size_t into) {
    const std::size_t a = root(from), b = root(into);
    if (a == b) return;
    parent_[b] = a;
    ready_[a] = std::max(ready_[a], ready_[b]);
    members_[a].insert(members_[a].end(), members_[b].begin(), members_[b].end());
  }

  /// Finds the readers of a value's memory: a reshape of it is the value itself. The end reads
  /// outputs.
  void find_readers() {
    base_.resize(values_.size());
    for (std::size_t v = 0; v < values_.size(); ++v) {
      base_[v] = static_cast<PartitionedGraph::ValueId>(v);
    }
    readers_.assign(values_.size(), {});
    for (std::size_t i = 0; i < steps_.size(); ++i) {
      if (!needed_[i]) continue;
      const bool is_same = is_alias(op(i));
      for_each_operand(i, [&](auto operand) {
        const auto base = base_[as_size(operand)];
        if (is_same) {
          base_[as_size(result(i))] = base;
        } else {
          readers_[as_size(base)].push_back(i);
        }
      });
    }
    for (const auto output : outputs_) {
      readers_[as_size(base_[as_size(output)])].push_back(steps_.size());
    }
  }

  /// Sums that are to be combined over the same devices go together, up to a limit, if all of their
  /// parts are there before any sum is used: else values would wait for the bucket. A move's height
  /// is the length of the longest chain of combining moves that wait for it. Moves of one height do
  /// not wait for each other, and a move that waits for one of them is lower. So buckets never wait
  /// in a circle.
  void join_moves(const std::vector<FusedStep>& order) {
    std::vector<std::int64_t> height(steps_.size(), 0);  // by root
    // By root, in this order: the last group that it waits for, and the first that waits for it.
    std::vector<std::size_t> ready(steps_.size(), 0), used(steps_.size(), order.size());
    std::vector<std::size_t> place(steps_.size(), 0);
    for (std::size_t g = 0; g < order.size(); ++g) place[root(order[g].steps.front())] = g;
    for (std::size_t g = order.size(); g-- > 0;) {
      const std::size_t here = root(order[g].steps.front());
      const std::int64_t below = height[here] + (combines(order[g].steps.front()) ? 1 : 0);
      for (const std::size_t step : order[g].steps) {
        for_each_source(step, [&](std::size_t from) {
          if (root(from) == here) return;
          height[root(from)] = std::max(height[root(from)], below);
          ready[here] = std::max(ready[here], place[root(from)]);
          used[root(from)] = g;
        });
      }
    }
    struct Bucket {
      std::size_t step;
      std::size_t bytes;
      std::size_t ready, used;
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
          Bucket{i, bytes, ready[i], used[i]});
      if (is_new) continue;
      Bucket& bucket = at->second;
      const std::size_t all_ready = std::max(bucket.ready, ready[i]);
      const std::size_t one_used = std::min(bucket.used, used[i]);
      const bool is_scattered = move.kind == CollectiveKind::reduce_scatter;
      if (bucket.bytes + bytes > kBucketBytes || all_ready >= one_used ||
          (is_scattered && bucket.bytes > kWaitingScatteredBytes)) {
        bucket = {i, bytes, ready[i], used[i]};
      } else {
        parent_[root(i)] = root(bucket.step);
        bucket = {bucket.step, bucket.bytes + bytes, all_ready, one_used};
      }
    }
  }

  bool combines(std::size_t step) const {
    const auto* const move = std::get_if<PartitionedGraph::Move>(&steps_[step]);
    return move != nullptr && (move->kind == CollectiveKind::all_reduce ||
                               move->kind == CollectiveKind::reduce_scatter);
  }

  /// Calls body(step) for each step that makes an operand of this one.
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
    // Groups by their first step, and the groups that they wait for.
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
  const std::vector<PartitionedGraph::ValueId>& outputs_;
  const NanCheck nan_check_;
  std::vector<std::size_t> maker_;  ///< by value: its step
  std::vector<bool> needed_;        ///< by step
  std::vector<std::size_t> level_, parent_;
  std::vector<std::size_t> ready_;                 ///< by root: the last step that it waits for
  std::vector<std::vector<std::size_t>> members_;  ///< by root
  std::vector<PartitionedGraph::ValueId> base_;  ///< by value: the value that it is another name of
  std::vector<std::vector<std::size_t>> readers_;  ///< by base_: steps; of outputs the end, too
  std::vector<std::size_t> joins_, others_;        ///< operands of a step: in its kernel, or not
  std::vector<PartitionedGraph::ValueId> reads_;   ///< of a kernel
};

}  // namespace

std::vector<FusedStep> fuse(const Graph& graph, const PartitionedGraph& partitioned,
                            NanCheck nan_check) {
  return Fuser(graph, partitioned, nan_check).run();
}

}  // namespace shardwise
