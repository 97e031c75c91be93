#include "shardwise/runtime/spmd/detail/memory_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "shardwise/runtime/ops/detail/row.h"

namespace shardwise {
namespace {

using Home = MemoryPlan::Home;
using ValueId = Program::ValueId;

// The longest search back for the input that an output replaces.
constexpr int kMostVisits = 64;

/// The holder of each byte of a region, while values are placed one after another.
class Holders {
 public:
  /// `value` holds these bytes from now on; returns the previous holders, each once.
  std::vector<ValueId> take(std::size_t offset, std::size_t bytes, ValueId value) {
    const std::size_t end = offset + bytes;
    std::vector<ValueId> before;
    auto at = ranges_.upper_bound(offset);
    if (at != ranges_.begin()) --at;
    while (at != ranges_.end() && at->first < end) {
      const auto [begin, range] = *at;
      if (range.end <= offset) {
        ++at;
        continue;
      }
      if (std::find(before.begin(), before.end(), range.value) == before.end()) {
        before.push_back(range.value);
      }
      at = ranges_.erase(at);
      if (begin < offset) ranges_.emplace(begin, Range{offset, range.value});
      if (end < range.end) at = ranges_.emplace(end, range).first;
    }
    ranges_.emplace(offset, Range{end, value});
    return before;
  }

 private:
  struct Range {
    std::size_t end;
    ValueId value;
  };
  std::map<std::size_t, Range> ranges_;  ///< by begin; they do not overlap
};

class Planner {
 public:
  Planner(const Graph& graph, const LoweredProgram& lowered)
      : graph_(graph), lowered_(lowered), program_(lowered.program) {
    const std::size_t count = program_.values().size();
    plan_.homes.assign(count, Home::region);
    plan_.roots = lowered.alias_of;
    plan_.offsets = lowered.alias_offsets;
    plan_.hosts.assign(count, -1);
    taken_.assign(count, false);
    for (const Program::Value& value : program_.values()) {
      plan_.bytes.push_back(num_bytes(value.layout.largest(value.shape), size_bytes(value.dtype)));
    }
    for (const ValueId input : lowered.inputs) home(input) = Home::input;
    for (const ValueId output : lowered.outputs) {
      if (home(output) == Home::region) home(output) = Home::output;
    }
  }

  MemoryPlan run(const std::vector<bool>& may_donate, OutputsHost outputs_host,
                 const Carries& carries) {
    find_roots();
    leave_out_kernels();
    find_lifetimes();
    find_replaced(may_donate);
    for (std::size_t k = 0; k < carries.count; ++k) {
      if (plan_.is_made[k] && may_write_over(k, carries.first + k)) {
        plan_.donated[k] = static_cast<std::int64_t>(carries.first + k);
      }
    }
    if (outputs_host == OutputsHost::yes) find_hosts();
    write_over_operands();
    place_in_outputs();
    place();
    find_reuse();
    return std::move(plan_);
  }

 private:
  Home& home(ValueId value) { return plan_.homes[as_size(value)]; }
  ValueId& root(ValueId value) { return plan_.roots[as_size(value)]; }
  Lifetime& lifetime(ValueId value) { return plan_.lifetimes[as_size(value)]; }
  const Program::Value& value(ValueId id) const { return program_.value(id); }
  ValueId count() const { return static_cast<ValueId>(program_.values().size()); }

  /// Inputs and outputs have memory of their own, and nothing shares an output's.
  void find_roots() {
    for (ValueId v = 0; v < count(); ++v) {
      if (home(v) != Home::region) root(v) = v;
      if (root(v) != v) root(v) = root(root(v));
      if (home(root(v)) == Home::output) root(v) = v;
      if (root(v) == v) plan_.offsets[as_size(v)] = 0;
    }
  }

  /// A value that only a call of a kernel makes and reads stays on the chip, unless another name of
  /// it has memory.
  void leave_out_kernels() {
    const std::vector<bool> within = within_kernels(graph_);
    if (within.empty()) return;
    std::vector<bool> has_memory(plan_.bytes.size(), false);
    const auto need = [&](ValueId v) { has_memory[as_size(root(v))] = true; };
    for (ValueId v = 0; v < count(); ++v) {
      if (home(root(v)) != Home::region || !within[as_size(lowered_.nodes[as_size(v)])]) need(v);
    }
    for (const Program::Step& step : program_.steps()) {
      if (!std::holds_alternative<Program::Call>(step)) visit_step(step, need, need);
    }
    for (ValueId v = 0; v < count(); ++v) {
      if (!has_memory[as_size(root(v))]) plan_.bytes[as_size(v)] = 0;
    }
  }

  void find_lifetimes() {
    plan_.lifetimes.assign(plan_.bytes.size(), {0, 0, -1});
    for (std::size_t step = 0; step < program_.steps().size(); ++step) {
      const auto at = static_cast<std::int64_t>(step);
      visit_step(
          program_.steps()[step], [&](ValueId v) { lifetime(v).last = at; },
          [&](ValueId v) { lifetime(v).first = lifetime(v).last = at; });
    }
    for (ValueId v = 0; v < count(); ++v) {
      lifetime(v).bytes = plan_.bytes[as_size(v)];
      lifetime(root(v)).last = std::max(lifetime(root(v)).last, lifetime(v).last);
    }
  }

  void find_replaced(const std::vector<bool>& may_donate) {
    plan_.replaced.assign(lowered_.outputs.size(), -1);
    std::vector<std::int64_t> input_of(graph_.nodes.size(), -1);
    for (std::size_t i = 0; i < graph_.inputs.size(); ++i) {
      input_of[as_size(graph_.inputs[i].node)] = static_cast<std::int64_t>(i);
    }
    used_.assign(lowered_.inputs.size(), false);
    is_output_.assign(plan_.bytes.size(), false);
    for (const ValueId output : lowered_.outputs) {
      plan_.is_made.push_back(home(output) == Home::output && !is_output_[as_size(output)]);
      is_output_[as_size(output)] = true;
    }
    for (std::size_t o = 0; o < lowered_.outputs.size(); ++o) {
      if (!plan_.is_made[o]) continue;
      // Searches back through elementwise operations, depth first through operand 0: in w - 0.1 * g
      // that is w.
      std::vector<NodeId> open{graph_.outputs[o]};
      for (int visits = 0; !open.empty() && visits < kMostVisits; ++visits) {
        const NodeId id = open.back();
        open.pop_back();
        const std::int64_t input = input_of[as_size(id)];
        if (input >= 0 && may_replace(o, as_size(input))) {
          plan_.replaced[o] = input;
          used_[as_size(input)] = true;
          break;
        }
        if (keeps_places(graph_.node(id).op)) {
          const std::vector<NodeId>& operands = graph_.node(id).operands;
          open.insert(open.end(), operands.rbegin(), operands.rend());
        }
      }
    }
    plan_.donated = plan_.replaced;
    for (std::int64_t& input : plan_.donated) {
      if (input >= 0 && !(as_size(input) < may_donate.size() && may_donate[as_size(input)])) {
        input = -1;
      }
    }
  }

  bool may_replace(std::size_t output, std::size_t input) {
    const MemoryKind kind = graph_.inputs[input].kind;
    if (used_[input] || (kind != MemoryKind::parameter && kind != MemoryKind::optimizer)) {
      return false;
    }
    return may_write_over(output, input);
  }

  bool may_write_over(std::size_t output, std::size_t input) {
    const ValueId to = lowered_.outputs[output], from = lowered_.inputs[input];
    if (home(from) != Home::input || is_output_[as_size(from)]) return false;
    if (!same_memory(to, from) || !(value(to).dtype == value(from).dtype)) return false;
    // Not needed after the output is made, or read and written element by element then.
    const std::int64_t made = lifetime(to).first;
    const auto& pairs = lowered_.in_place[as_size(made)];
    const bool in_place = std::any_of(pairs.begin(), pairs.end(), [&](const auto& pair) {
      return pair.operand == from && pair.result == to;
    });
    if (lifetime(from).last < made) return true;
    return in_place && lifetime(from).last == made &&
           !is_read_otherwise(program_.steps()[as_size(made)], pairs, to, from);
  }

  /// True if the shards of both have the same bytes at each position.
  bool same_memory(ValueId a, ValueId b) const {
    const Program::Value &x = value(a), &y = value(b);
    return size_bytes(x.dtype) == size_bytes(y.dtype) && x.shape == y.shape && x.layout == y.layout;
  }

  /// Outputs with memory of their own.
  void find_hosts() {
    for (std::size_t o = 0; o < lowered_.outputs.size(); ++o) {
      if (!plan_.is_made[o] || plan_.donated[o] >= 0) continue;
      const ValueId output = lowered_.outputs[o];
      hosts_.emplace(output, Host{output, lifetime(output).first});
    }
  }

  /// A result takes the memory of an operand that is not needed any more. If the result is an
  /// output, the operand has the output's memory from the beginning.
  void write_over_operands() {
    std::vector<std::vector<ValueId>> aliases(plan_.bytes.size());  // by root, itself included
    for (ValueId v = 0; v < count(); ++v) aliases[as_size(root(v))].push_back(v);
    for (std::size_t step = 0; step < program_.steps().size(); ++step) {
      for (const LoweredProgram::InPlace& pair : lowered_.in_place[step]) {
        const ValueId result = pair.result, operand = root(pair.operand);
        if (!may_take(step, pair)) continue;
        taken_[as_size(result)] = true;
        const auto host = hosts_.find(result);
        const auto [from, into] =
            host == hosts_.end() ? std::pair(result, operand) : std::pair(operand, result);
        if (host != hosts_.end()) {
          host->second = {operand, lifetime(operand).first};
        } else {
          lifetime(operand).last = lifetime(result).last;
        }
        for (const ValueId alias : aliases[as_size(from)]) {
          root(alias) = into;
          aliases[as_size(into)].push_back(alias);
        }
      }
    }
  }

  bool may_take(std::size_t step, const LoweredProgram::InPlace& pair) {
    const ValueId result = pair.result, operand = root(pair.operand);
    const bool is_free = home(result) == Home::region
                             ? root(result) == result
                             : hosts_.count(result) > 0 && hosts_.at(result).head == result;
    return is_free && home(operand) == Home::region &&
           lifetime(operand).last == static_cast<std::int64_t>(step) &&
           same_memory(result, pair.operand) &&
           plan_.bytes[as_size(result)] == plan_.bytes[as_size(operand)] &&
           !is_read_otherwise(program_.steps()[step], lowered_.in_place[step], result, operand) &&
           !has_older(step, pair);
  }

  /// The operand of an output that lives longer gains more by the output's memory.
  bool has_older(std::size_t step, const LoweredProgram::InPlace& pair) {
    return home(pair.result) == Home::output &&
           std::ranges::any_of(lowered_.in_place[step], [&](const auto& other) {
             const ValueId operand = root(other.operand);
             return other.result == pair.result && home(operand) == Home::region &&
                    lifetime(operand).last == static_cast<std::int64_t>(step) &&
                    same_memory(pair.result, other.operand) &&
                    lifetime(operand).first < lifetime(root(pair.operand)).first;
           });
  }

  /// Values that are not needed when an output is made may use its memory until then.
  void place_in_outputs() {
    std::vector<ValueId> outputs, values;
    std::vector<Lifetime> hosts, lifetimes;
    const auto end = static_cast<std::int64_t>(program_.steps().size());
    for (const auto& [output, host] : hosts_) {
      // Memory is that of each device's own shard, and places are for the largest.
      const Program::Value& made = value(output);
      if (made.layout.has_windows() ||
          made.box(program_.mesh().size() - 1).shape() != made.layout.largest(made.shape)) {
        continue;
      }
      outputs.push_back(output);
      hosts.push_back({plan_.bytes[as_size(output)], host.first, end});
    }
    for (ValueId v = 0; v < count(); ++v) {
      if (!plan_.is_placed(as_size(v)) || lifetime(v).last < 0) continue;
      values.push_back(v);
      lifetimes.push_back(lifetime(v));
    }
    const std::vector<Hosted> hosted = plan_hosted(hosts, lifetimes);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (hosted[i].host < 0) continue;
      plan_.hosts[as_size(values[i])] = outputs[as_size(hosted[i].host)];
      plan_.offsets[as_size(values[i])] = hosted[i].offset;
    }
  }

  /// True if the step reads the operand's memory also in another order: repeated, for example.
  bool is_read_otherwise(const Program::Step& step,
                         const std::vector<LoweredProgram::InPlace>& pairs, ValueId result,
                         ValueId operand) {
    std::vector<ValueId> inputs;
    visit_step(
        step, [&](ValueId input) { inputs.push_back(input); }, [](ValueId) {});
    for (const ValueId input : inputs) {
      if (root(input) != operand) continue;
      if (std::count(inputs.begin(), inputs.end(), input) > 1) return true;
      const bool in_order = std::any_of(pairs.begin(), pairs.end(), [&](const auto& pair) {
        return pair.operand == input && pair.result == result;
      });
      if (!in_order) return true;
    }
    return false;
  }

  void place() {
    std::vector<ValueId> values;
    std::vector<Lifetime> lifetimes;
    for (ValueId v = 0; v < count(); ++v) {
      if (!plan_.is_placed(as_size(v))) continue;
      values.push_back(v);
      lifetimes.push_back(lifetime(v));
    }
    const Offsets planned = plan_offsets(lifetimes);
    for (std::size_t i = 0; i < values.size(); ++i) {
      plan_.offsets[as_size(values[i])] = planned.offsets[i];
    }
    plan_.region_bytes = planned.total_bytes;
  }

  /// Finds the values that were in a value's memory just before it. Earlier ones need no check: the
  /// values just before it have waited for them.
  void find_reuse() {
    // By root: the values that are in its memory at last, and those that are there now.
    std::vector<std::vector<ValueId>> last(plan_.bytes.size());
    plan_.reuse.resize(plan_.bytes.size());
    for (ValueId v = 0; v < count(); ++v) {
      std::vector<ValueId>& now = last[as_size(root(v))];
      if (taken_[as_size(v)]) plan_.reuse[as_size(v)] = std::exchange(now, {});
      now.push_back(v);
    }
    std::map<ValueId, std::vector<ValueId>> by_place;  // an output, or -1: the region
    for (ValueId v = 0; v < count(); ++v) {
      if (root(v) != v || lifetime(v).bytes == 0) continue;
      const ValueId host = plan_.hosts[as_size(v)];
      if (hosts_.count(v) > 0) {
        by_place[v].push_back(v);
      } else if (home(v) == Home::region) {
        by_place[host].push_back(v);
      }
    }
    for (auto& [place, values] : by_place) find_last_holders(std::move(values), last);
    for (std::size_t o = 0; o < plan_.donated.size(); ++o) {
      if (plan_.donated[o] < 0) continue;
      add_reuse(lowered_.outputs[o], last[as_size(lowered_.inputs[as_size(plan_.donated[o])])]);
    }
  }

  void add_reuse(ValueId v, const std::vector<ValueId>& before) {
    std::vector<ValueId>& list = plan_.reuse[as_size(v)];
    list.insert(list.end(), before.begin(), before.end());
  }

  /// `order`: the roots of the region, or of an output's memory, in the order of their first
  /// writes. Each takes its bytes from the last holders.
  void find_last_holders(std::vector<ValueId> order,
                         const std::vector<std::vector<ValueId>>& last) {
    std::stable_sort(order.begin(), order.end(), [&](ValueId a, ValueId b) {
      return lifetime(head(a)).first < lifetime(head(b)).first;
    });
    Holders holders;
    for (const ValueId v : order) {
      std::vector<ValueId> before = holders.take(plan_.offsets[as_size(v)], lifetime(v).bytes, v);
      std::stable_sort(before.begin(), before.end(),
                       [&](ValueId a, ValueId b) { return lifetime(a).last > lifetime(b).last; });
      for (const ValueId u : before) add_reuse(head(v), last[as_size(u)]);
    }
  }

  /// The value that writes to a root's memory first.
  ValueId head(ValueId root) const {
    const auto host = hosts_.find(root);
    return host == hosts_.end() ? root : host->second.head;
  }

  const Graph& graph_;
  const LoweredProgram& lowered_;
  const Program& program_;
  MemoryPlan plan_;

  /// An output whose memory holds other values before it is made.
  struct Host {
    ValueId head;        ///< the first value that it overwrites; else itself
    std::int64_t first;  ///< the step that makes that
  };
  std::map<ValueId, Host> hosts_;  ///< by output

  std::vector<bool> used_;       ///< by Graph::inputs: an output replaces it
  std::vector<bool> is_output_;  ///< by value
  std::vector<bool> taken_;      ///< by value: it is written over an operand
};

}  // namespace

MemoryPlan plan_memory(const Graph& graph, const LoweredProgram& lowered,
                       const std::vector<bool>& may_donate, OutputsHost outputs_host,
                       const Carries& carries) {
  return Planner(graph, lowered).run(may_donate, outputs_host, carries);
}

MemoryKind output_kind(const Graph& graph, const MemoryPlan& plan, std::size_t output) {
  const std::int64_t input = plan.donated[output];
  return input < 0 ? MemoryKind::array : graph.inputs[as_size(input)].kind;
}

PlannedMemory planned_memory(const Graph& graph, const LoweredProgram& lowered,
                             const MemoryPlan& plan, std::int64_t position) {
  PlannedMemory planned;
  const auto add = [&](MemoryKind kind, std::size_t bytes) {
    planned.by_kind[static_cast<std::size_t>(kind)] += bytes;
    planned.peak_bytes += bytes;
  };
  const auto shard_bytes = [&](ValueId id) {
    const Program::Value& value = lowered.program.value(id);
    return num_bytes(value.box(position).shape(), size_bytes(value.dtype));
  };
  add(MemoryKind::activation, plan.region_bytes);
  for (const ValueId input : lowered.inputs) {
    add(lowered.program.value(input).kind, shard_bytes(input));
  }
  for (std::size_t o = 0; o < lowered.outputs.size(); ++o) {
    if (!plan.is_made[o] || plan.donated[o] >= 0) continue;
    add(output_kind(graph, plan, o), shard_bytes(lowered.outputs[o]));
  }
  return planned;
}

}  // namespace shardwise
