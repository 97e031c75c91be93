#include "shardwise/runtime/spmd/executable.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "shardwise/runtime/ops/row.h"
#include "shardwise/runtime/program/run.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using ValueId = Program::ValueId;

/// Reads what a step reads and gives what it makes.
template <class Reads, class Makes>
void visit_step(const Program::Step& step, const Reads& reads, const Makes& makes) {
  if (const auto* const call = std::get_if<Program::Call>(&step)) {
    for (const ValueId value : call->inputs) reads(value);
    for (const ValueId value : call->outputs) makes(value);
  } else if (const auto* const move = std::get_if<Program::Move>(&step)) {
    for (const Program::Move::Part& part : move->parts) reads(part.from);
    for (const Program::Move::Part& part : move->parts) makes(part.to);
  } else {
    makes(std::get<Program::Fill>(step).value);
  }
}

std::size_t shard_bytes(const Program::Value& value, std::int64_t position) {
  return num_bytes(value.box(position).shape(), size_bytes(value.spec.dtype));
}

/// Bytes of the largest shard, which is the one with the first box.
std::size_t largest_bytes(const Program::Value& value) {
  return num_bytes(value.spec.sharding.shard_shape(value.spec.shape), size_bytes(value.spec.dtype));
}

std::vector<Cut> input_cuts(const Graph& graph, const Mesh& mesh, const Propagation& propagation,
                            const CompileOptions& options) {
  std::vector<Cut> cuts;
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    const NodeId node = graph.inputs[i].node;
    const bool bound = i < options.input_specs.size() && options.input_specs[i].has_value();
    cuts.push_back(bound ? to_cut(*options.input_specs[i], mesh, graph.node(node).type.shape.size())
                         : propagation.cuts[as_size(node)]);
  }
  return cuts;
}

}  // namespace

Executable::Executable(std::shared_ptr<const Graph> graph, const Mesh& mesh,
                       const CompileOptions& options)
    : graph_(std::move(graph)),
      mesh_(mesh),
      propagation_(propagate(*graph_, mesh_)),
      partitioned_(partition(*graph_, mesh_, propagation_,
                             input_cuts(*graph_, mesh_, propagation_, options), options.partition)),
      steps_(fuse(*graph_, partitioned_)),
      lowered_(lower(graph_, mesh_, partitioned_, steps_)),
      schedule_(Program(mesh)) {
  plan_memory(options);
}

const ArraySpec& Executable::input_spec(std::size_t i) const {
  return program().value(lowered_.inputs[i]).spec;
}
const ArraySpec& Executable::output_spec(std::size_t i) const {
  return program().value(lowered_.outputs[i]).spec;
}

void Executable::plan_memory(const CompileOptions& options) {
  const std::size_t count = program().values().size();
  const auto last_step = static_cast<std::int64_t>(program().steps().size());
  homes_.assign(count, Home::region);
  for (const ValueId input : lowered_.inputs) homes_[as_size(input)] = Home::input;
  for (const ValueId output : lowered_.outputs) {
    if (homes_[as_size(output)] == Home::region) homes_[as_size(output)] = Home::output;
  }
  std::vector<std::int64_t> first(count, 0), last(count, -1);
  for (std::int64_t step = 0; step < last_step; ++step) {
    visit_step(
        program().steps()[as_size(step)], [&](ValueId value) { last[as_size(value)] = step; },
        [&](ValueId value) { first[as_size(value)] = last[as_size(value)] = step; });
  }
  bytes_.resize(count);
  for (std::size_t v = 0; v < count; ++v) bytes_[v] = largest_bytes(program().values()[v]);

  // Values that share memory have one root. Outputs have memory of their own.
  std::vector<ValueId>& root = lowered_.alias_of;
  for (std::size_t v = 0; v < count; ++v) {
    const auto id = static_cast<ValueId>(v);
    if (homes_[v] != Home::region) root[v] = id;
    if (root[v] != id) root[v] = root[as_size(root[v])];
    if (homes_[as_size(root[v])] == Home::output) root[v] = id;
  }
  std::vector<std::int64_t> root_last = last;
  for (std::size_t v = 0; v < count; ++v) {
    std::int64_t& until = root_last[as_size(root[v])];
    until = std::max(until, last[v]);
  }
  lifetimes_.assign(count, {});
  for (std::size_t v = 0; v < count; ++v) lifetimes_[v] = {bytes_[v], first[v], root_last[v]};
  find_replaced(root_last);
  donated_ = replaced_;
  for (std::int64_t& input : donated_) {
    const bool may = input >= 0 && as_size(input) < options.may_donate.size() &&
                     options.may_donate[as_size(input)];
    if (!may) input = -1;
  }
  // A result takes over an operand that is needed no more.
  std::vector<bool> taken(count, false);
  for (std::int64_t step = 0; step < last_step; ++step) {
    for (const LoweredProgram::InPlace& pair : lowered_.in_place[as_size(step)]) {
      const std::size_t result = as_size(pair.result),
                        operand = as_size(root[as_size(pair.operand)]);
      if (root[result] != pair.result || taken[result] || homes_[result] != Home::region) continue;
      if (homes_[operand] != Home::region || root_last[operand] != step) continue;
      if (bytes_[result] != bytes_[operand] ||
          program().values()[result].kind != program().values()[operand].kind ||
          !(program().values()[result].spec.sharding ==
            program().values()[operand].spec.sharding)) {
        continue;
      }
      taken[result] = true;
      for (std::size_t v = result; v < count; ++v) {
        if (root[v] == pair.result) root[v] = static_cast<ValueId>(operand);
      }
      root_last[operand] = root_last[result];
    }
  }

  lifetimes_.assign(count, {});
  offsets_.assign(count, 0);
  for (const MemoryKind kind : {MemoryKind::activation, MemoryKind::collective}) {
    std::vector<std::size_t> values;
    std::vector<Lifetime> lifetimes;
    for (std::size_t v = 0; v < count; ++v) {
      if (root[v] != static_cast<ValueId>(v)) continue;
      lifetimes_[v] = {bytes_[v], first[v], root_last[v]};
      if (homes_[v] != Home::region || program().values()[v].kind != kind) continue;
      values.push_back(v);
      lifetimes.push_back(lifetimes_[v]);
    }
    const Offsets planned = plan_offsets(lifetimes);
    for (std::size_t i = 0; i < values.size(); ++i) offsets_[values[i]] = planned.offsets[i];
    (kind == MemoryKind::activation ? activation_bytes_ : collective_bytes_) = planned.total_bytes;
  }

  // What was in a value's memory before it: all of its root's group.
  std::vector<std::vector<ValueId>> group(count);
  for (std::size_t v = 0; v < count; ++v) {
    group[as_size(root[v])].push_back(static_cast<ValueId>(v));
  }
  MemoryReuse reuse(count);
  for (std::size_t v = 0; v < count; ++v) {
    const auto id = static_cast<ValueId>(v);
    if (homes_[v] != Home::region) continue;
    if (root[v] != id) {
      // Written over an operand: after all that reads what the group held before.
      if (taken[v]) {
        for (const ValueId other : group[as_size(root[v])]) {
          if (other < id) reuse[v].push_back(other);
        }
      }
      continue;
    }
    for (std::size_t u = 0; u < count; ++u) {
      if (u == v || root[u] != static_cast<ValueId>(u) || homes_[u] != Home::region) continue;
      if (program().values()[u].kind != program().values()[v].kind) continue;
      if (lifetimes_[u].last >= first[v] || bytes_[u] == 0 || bytes_[v] == 0) continue;
      if (offsets_[u] >= offsets_[v] + bytes_[v] || offsets_[v] >= offsets_[u] + bytes_[u])
        continue;
      reuse[v].insert(reuse[v].end(), group[u].begin(), group[u].end());
    }
  }
  for (std::size_t i = 0; i < donated_.size(); ++i) {
    if (donated_[i] < 0) continue;
    const ValueId input = lowered_.inputs[as_size(donated_[i])];
    std::vector<ValueId>& before = reuse[as_size(lowered_.outputs[i])];
    before.insert(before.end(), group[as_size(input)].begin(), group[as_size(input)].end());
  }
  schedule_ = Schedule(program(), 0, reuse);
}

void Executable::find_replaced(const std::vector<std::int64_t>& last_use) {
  replaced_.assign(lowered_.outputs.size(), -1);
  std::vector<std::int64_t> input_of(graph_->nodes.size(), -1);
  for (std::size_t i = 0; i < graph_->inputs.size(); ++i) {
    input_of[as_size(graph_->inputs[i].node)] = static_cast<std::int64_t>(i);
  }
  std::vector<bool> used(lowered_.inputs.size(), false);
  const auto fits = [&](std::size_t output, std::size_t input) {
    const MemoryKind kind = graph_->inputs[input].kind;
    if (used[input] || (kind != MemoryKind::parameter && kind != MemoryKind::optimizer)) {
      return false;
    }
    const ValueId to = lowered_.outputs[output], from = lowered_.inputs[input];
    if (std::count(lowered_.outputs.begin(), lowered_.outputs.end(), from) > 0) return false;
    const ArraySpec &a = program().value(to).spec, &b = program().value(from).spec;
    if (a.dtype != b.dtype || !(a.shape == b.shape) || !(a.sharding == b.sharding)) return false;
    // Needed no more when the output is made, or at least read and written element by element.
    const std::int64_t made = lifetimes_[as_size(to)].first;
    const auto& pairs = lowered_.in_place[as_size(made)];
    const bool in_place = std::any_of(pairs.begin(), pairs.end(), [&](const auto& pair) {
      return pair.operand == from && pair.result == to;
    });
    return last_use[as_size(from)] < made || (in_place && last_use[as_size(from)] == made);
  };
  for (std::size_t o = 0; o < lowered_.outputs.size(); ++o) {
    if (homes_[as_size(lowered_.outputs[o])] != Home::output) continue;
    // Back through what is computed element by element, first operands first: in w - 0.1 * g the
    // first one is w.
    std::vector<NodeId> open{graph_->outputs[o]};
    for (int visits = 0; !open.empty() && visits < 64 && replaced_[o] < 0; ++visits) {
      const NodeId id = open.back();
      open.pop_back();
      const std::int64_t input = input_of[as_size(id)];
      if (input >= 0) {
        if (!fits(o, as_size(input))) continue;
        replaced_[o] = input;
        used[as_size(input)] = true;
      } else if (is_elementwise(graph_->node(id).op)) {
        const std::vector<NodeId>& operands = graph_->node(id).operands;
        open.insert(open.end(), operands.rbegin(), operands.rend());
      }
    }
  }
}

std::vector<ShardedArray> Executable::run(Devices& devices,
                                          std::vector<ShardedArray> inputs) const {
  const std::int64_t positions = mesh_.size();
  if (inputs.size() != lowered_.inputs.size()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("run a program: found {} inputs, needed {}", inputs.size(),
                            lowered_.inputs.size()));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const ArraySpec& needed = input_spec(i);
    if (inputs[i].dtype() == needed.dtype && inputs[i].shape() == needed.shape &&
        inputs[i].sharding() == needed.sharding) {
      continue;
    }
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("run a program: found input \"{}\" of {}{} cut as {}, needed {}{} cut "
                    "as {}",
                    graph_->inputs[i].label, name(inputs[i].dtype()), to_string(inputs[i].shape()),
                    inputs[i].sharding().to_string(), name(needed.dtype), to_string(needed.shape),
                    needed.sharding.to_string()));
  }
  // Which outputs take an input's memory: those that nobody else holds.
  std::vector<std::vector<std::shared_ptr<Buffer>>> made(lowered_.outputs.size());
  std::vector<bool> in_place(lowered_.outputs.size(), false);
  for (std::size_t o = 0; o < made.size(); ++o) {
    if (donated_[o] < 0) continue;
    if (auto shards = std::move(inputs[as_size(donated_[o])]).release()) {
      made[o] = std::move(*shards);
      in_place[o] = true;
    }
  }
  for (std::int64_t p = 0; p < positions; ++p) {
    Device& device = devices.at(mesh_.device_at(p));
    std::size_t needed = activation_bytes_ + collective_bytes_;
    for (std::size_t o = 0; o < made.size(); ++o) {
      if (homes_[as_size(lowered_.outputs[o])] == Home::output && !in_place[o]) {
        needed += shard_bytes(program().value(lowered_.outputs[o]), p);
      }
    }
    const MemoryStats stats = device.memory();
    if (needed > stats.capacity_bytes - stats.in_use_bytes) refuse(devices, device.id(), needed);
  }
  Storage storage(positions);
  std::vector<std::shared_ptr<Buffer>> regions;
  for (std::int64_t p = 0; p < positions; ++p) {
    Device& device = devices.at(mesh_.device_at(p));
    regions.push_back(
        device.allocate(activation_bytes_, MemoryKind::activation, "values of a program"));
    regions.push_back(
        device.allocate(collective_bytes_, MemoryKind::collective, "collectives of a program"));
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const ValueId value = lowered_.inputs[i];
    const auto taker = std::find(donated_.begin(), donated_.end(), static_cast<std::int64_t>(i));
    const std::size_t o = static_cast<std::size_t>(taker - donated_.begin());
    for (std::int64_t p = 0; p < positions; ++p) {
      const bool gone = taker != donated_.end() && in_place[o];
      const std::byte* const data = gone ? made[o][as_size(p)]->data() : inputs[i].shard(p).data;
      storage.bind(value, p, data);
    }
  }
  for (std::size_t o = 0; o < made.size(); ++o) {
    const ValueId value = lowered_.outputs[o];
    if (homes_[as_size(value)] != Home::output) continue;
    const auto before = std::find(lowered_.outputs.begin(),
                                  lowered_.outputs.begin() + static_cast<std::ptrdiff_t>(o), value);
    if (before != lowered_.outputs.begin() + static_cast<std::ptrdiff_t>(o)) continue;
    for (std::int64_t p = 0; p < positions; ++p) {
      if (!in_place[o]) {
        const std::size_t bytes = shard_bytes(program().value(value), p);
        made[o].push_back(devices.at(mesh_.device_at(p))
                              .allocate(bytes, output_kind(o), program().value(value).label));
      }
      storage.bind(value, p, made[o][as_size(p)]->data());
    }
  }
  for (std::size_t v = 0; v < homes_.size(); ++v) {
    const std::size_t root = as_size(lowered_.alias_of[v]);
    if (homes_[v] != Home::region) continue;
    const auto id = static_cast<ValueId>(v);
    for (std::int64_t p = 0; p < positions; ++p) {
      std::byte* data;
      if (homes_[root] == Home::input) {
        data = const_cast<std::byte*>(storage.data(static_cast<ValueId>(root), p));
      } else {
        const bool collective = program().values()[root].kind == MemoryKind::collective;
        data = regions[2 * as_size(p) + (collective ? 1 : 0)]->data() + offsets_[root];
      }
      storage.bind(id, p, data);
    }
  }
  shardwise::run(program(), schedule_, storage, devices);
  std::vector<ShardedArray> outputs;
  for (std::size_t o = 0; o < made.size(); ++o) {
    const ValueId value = lowered_.outputs[o];
    const auto before = std::find(lowered_.outputs.begin(), lowered_.outputs.end(), value);
    const auto first = static_cast<std::size_t>(before - lowered_.outputs.begin());
    if (homes_[as_size(value)] == Home::input) {
      const auto at = std::find(lowered_.inputs.begin(), lowered_.inputs.end(), value);
      outputs.push_back(inputs[static_cast<std::size_t>(at - lowered_.inputs.begin())]);
    } else if (first < o) {
      outputs.push_back(outputs[first]);
    } else {
      outputs.push_back(ShardedArray::from_shards(program().value(value).spec, std::move(made[o])));
    }
  }
  return outputs;
}

MemoryKind Executable::output_kind(std::size_t o) const {
  return donated_[o] < 0 ? MemoryKind::array : graph_->inputs[as_size(donated_[o])].kind;
}

PlannedMemory Executable::memory(std::int64_t position) const {
  PlannedMemory planned;
  const auto add = [&](MemoryKind kind, std::size_t bytes) {
    planned.by_kind[static_cast<std::size_t>(kind)] += bytes;
    planned.peak_bytes += bytes;
  };
  add(MemoryKind::activation, activation_bytes_);
  add(MemoryKind::collective, collective_bytes_);
  for (std::size_t i = 0; i < lowered_.inputs.size(); ++i) {
    const Program::Value& value = program().value(lowered_.inputs[i]);
    add(value.kind, shard_bytes(value, position));
  }
  for (std::size_t o = 0; o < lowered_.outputs.size(); ++o) {
    const ValueId value = lowered_.outputs[o];
    const bool again =
        std::count(lowered_.outputs.begin(),
                   lowered_.outputs.begin() + static_cast<std::ptrdiff_t>(o), value) > 0;
    if (homes_[as_size(value)] != Home::output || donated_[o] >= 0 || again) continue;
    add(output_kind(o), shard_bytes(program().value(value), position));
  }
  return planned;
}

void Executable::refuse(const Devices& devices, DeviceId device, std::size_t needed) const {
  const MemoryStats stats = devices.at(device).memory();
  // Where the regions are fullest.
  const auto steps = static_cast<std::int64_t>(program().steps().size());
  std::vector<std::size_t> in_use(as_size(steps) + 1, 0);
  for (std::size_t v = 0; v < homes_.size(); ++v) {
    if (homes_[v] != Home::region || lifetimes_[v].bytes == 0) continue;
    for (std::int64_t s = lifetimes_[v].first; s <= lifetimes_[v].last; ++s) {
      in_use[as_size(s)] += lifetimes_[v].bytes;
    }
  }
  const auto fullest = std::max_element(in_use.begin(), in_use.end()) - in_use.begin();
  std::vector<std::size_t> live;
  for (std::size_t v = 0; v < homes_.size(); ++v) {
    const bool there =
        homes_[v] != Home::region || (lifetimes_[v].bytes > 0 && lifetimes_[v].first <= fullest &&
                                      fullest <= lifetimes_[v].last);
    if (there) live.push_back(v);
  }
  std::stable_sort(live.begin(), live.end(),
                   [&](std::size_t a, std::size_t b) { return bytes_[a] > bytes_[b]; });
  std::string largest;
  for (std::size_t i = 0; i < std::min<std::size_t>(live.size(), 5); ++i) {
    const Program::Value& value = program().values()[live[i]];
    largest +=
        fmt::format("{}\"{}\" ({}, {}{} cut as {}, {} bytes)", i == 0 ? "" : ", ", value.label,
                    name(value.kind), name(value.spec.dtype), to_string(value.spec.shape),
                    value.spec.sharding.spec().to_string(), bytes_[live[i]]);
  }
  const std::string where = steps == 0 ? "no step" : name(program().steps()[as_size(fullest)]);
  throw Error(ErrorCode::resource_exhausted,
              fmt::format("run a program: device {} needs {} bytes beside the {} in use, {} more "
                          "than its {}; fullest at \"{}\"; largest there: {}",
                          device, needed, stats.in_use_bytes,
                          needed - (stats.capacity_bytes - stats.in_use_bytes),
                          stats.capacity_bytes, where, largest));
}

std::vector<CollectiveTotal> Executable::collectives() const {
  std::map<CollectiveKind, CollectiveTotal> totals;
  for (const FusedStep& fused : steps_) {
    for (const std::size_t step : fused.steps) {
      const auto* const move = std::get_if<PartitionedGraph::Move>(&partitioned_.steps[step]);
      if (move == nullptr || move->kind == CollectiveKind::slice) continue;
      CollectiveTotal& total =
          totals.emplace(move->kind, CollectiveTotal{move->kind}).first->second;
      total.count += step == fused.steps.front() ? 1 : 0;
      ++total.tensors;
      total.bytes += move->bytes;
      total.wire_bytes += move->wire_bytes;
    }
  }
  std::vector<CollectiveTotal> list;
  for (const auto& [kind, total] : totals) list.push_back(total);
  return list;
}

double Executable::flops() const {
  double total = 0;
  for (const PartitionedGraph::Step& step : partitioned_.steps) {
    const auto* const compute = std::get_if<PartitionedGraph::Compute>(&step);
    if (compute == nullptr || graph_->node(compute->node).op != Op::dot_general) continue;
    double operations = 2;
    for (const Factor& factor : propagation_.rules[as_size(compute->node)].factors) {
      operations *= static_cast<double>(factor.size);
    }
    total += operations;
  }
  return total;
}

std::string Executable::dump_plan() const {
  std::string text;
  for (std::size_t s = 0; s < program().steps().size(); ++s) {
    text += fmt::format("{}: {}", s, name(program().steps()[s]));
    visit_step(
        program().steps()[s], [](ValueId) {},
        [&](ValueId value) {
          const std::size_t v = as_size(value);
          const Program::Value& made = program().value(value);
          text += fmt::format(" -> {}{} {}", name(made.spec.dtype), to_string(made.spec.shape),
                              made.spec.sharding.spec().to_string());
          if (homes_[v] == Home::output) {
            text += " output";
          } else {
            const std::size_t root = as_size(lowered_.alias_of[v]);
            text += fmt::format(" {}+{}", name(program().values()[root].kind), offsets_[root]);
          }
          text += fmt::format(" {} bytes", bytes_[v]);
        });
    text += '\n';
  }
  return text + fmt::format("activations {} bytes, collectives {} bytes\n", activation_bytes_,
                            collective_bytes_);
}

}  // namespace shardwise
