#include "shardwise/runtime/spmd/executable.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <utility>

#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/runtime/program/detail/remote_copies.h"
#include "shardwise/runtime/program/detail/run.h"
#include "shardwise/runtime/program/detail/schedule.h"
#include "shardwise/runtime/spmd/detail/control/lower_body.h"
#include "shardwise/runtime/spmd/detail/out_of_memory.h"
#include "shardwise/runtime/spmd/detail/planned.h"
#include "shardwise/runtime/spmd/detail/program_facts.h"
#include "shardwise/runtime/spmd/detail/suggest.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

using Home = MemoryPlan::Home;
using ValueId = Program::ValueId;

std::size_t shard_bytes(const Program::Value& value, std::int64_t position) {
  return num_bytes(value.box(position).shape(), size_bytes(value.dtype));
}

}  // namespace

std::string_view name(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce:
      return "all-reduce";
    case CollectiveKind::reduce_scatter:
      return "reduce-scatter";
    case CollectiveKind::all_gather:
      return "all-gather";
    case CollectiveKind::all_to_all:
      return "all-to-all";
    case CollectiveKind::permute:
      return "collective-permute";
    case CollectiveKind::slice:
      return "slice";
    case CollectiveKind::general:
      return "general";
  }
  return "";
}

struct Executable::Impl : PlannedProgram {
  Impl(std::shared_ptr<const Graph> recorded, const Mesh& on, const CompileOptions& how)
      : PlannedProgram(std::move(recorded), on, how),
        schedule(made_schedule(lowered.program, plan.reuse, how.moves)),
        facts(detail::program_facts(*this)),
        tag(detail::hash(facts)) {}

  /// As Executable::check_memory(). `is_donated` by Graph::outputs: true if it takes an input's
  /// memory.
  void check_memory(const Devices& devices, const std::vector<bool>& is_here,
                    const std::vector<bool>& is_donated) const;

  Schedule schedule;
  std::vector<ProcessGroup::Fact> facts;  ///< that all processes must have alike
  std::uint64_t tag;                      ///< of them, for the messages of a run

 private:
  std::size_t most_needed(const std::vector<bool>& is_here,
                          const std::vector<bool>& is_donated) const;
  std::size_t input_bytes(std::int64_t position, const std::vector<bool>& is_counted) const;
};

Executable::Executable(std::shared_ptr<const Graph> graph, const Mesh& mesh,
                       const CompileOptions& options)
    : impl_(std::make_unique<const Impl>(std::move(graph), mesh, options)) {}
Executable::~Executable() = default;

const Graph& Executable::graph() const { return *impl_->traced; }
const Mesh& Executable::mesh() const { return impl_->mesh; }

const PlannedProgram& detail::ExecutableInternals::planned(const Executable& executable) {
  return *executable.impl_;
}

std::span<const std::int64_t> Executable::replaced() const { return impl_->plan.replaced; }

ArraySpec Executable::input_spec(std::size_t i) const {
  return impl_->lowered.program.value(impl_->lowered.inputs[i]).spec();
}

ArraySpec Executable::output_spec(std::size_t i) const {
  return impl_->lowered.program.value(impl_->lowered.outputs[i]).spec();
}

/// One run: the places of the values, and the owners of their memory.
class Executable::OneRun {
 public:
  OneRun(const Executable& executable, Devices& devices,
         std::span<std::optional<ShardedArray>> inputs)
      : e_(executable),
        devices_(devices),
        inputs_(inputs),
        made_(e_.impl_->lowered.outputs.size()),
        in_place_(made_.size(), false),
        begun_(made_.size()),
        storage_(e_.impl_->mesh.size()) {
    for (std::int64_t p = 0; p < e_.impl_->mesh.size(); ++p) {
      if (devices_.is_addressable(e_.impl_->mesh.device_at(p))) here_.push_back(p);
    }
  }

  std::vector<ShardedArray> run() {
    if (e_.impl_->options.moves == MovePlans::left_out) {
      throw Error(ErrorCode::invalid_argument,
                  "run a program: found one that is planned without its moves, needed one with "
                  "CompileOptions::moves as MovePlans::made");
    }
    if (e_.impl_->options.attention == Attention::fused) {
      throw Error(ErrorCode::invalid_argument,
                  "run a program: found one that is planned with fused attention, needed one with "
                  "CompileOptions::attention as Attention::written");
    }
    check_inputs();
    detail::together(devices_, [&] {
      if (devices_.group().size() > 1) devices_.group().agree("run a program", e_.impl_->facts);
      find_in_place();
      e_.impl_->check_memory(devices_, std::vector<bool>(inputs_.size(), true), in_place_);
      bind_inputs();
      bind_outputs();
      bind_regions();
      take_over();
      try {
        shardwise::run(e_.impl_->lowered.program, e_.impl_->schedule, storage_, devices_,
                       e_.impl_->tag);
      } catch (...) {
        give_back();
        throw;
      }
    });
    return outputs();
  }

 private:
  ValueId output(std::size_t o) const { return e_.impl_->lowered.outputs[o]; }
  const Program::Value& value(ValueId id) const { return e_.impl_->lowered.program.value(id); }
  Device& device(std::int64_t position) const {
    return devices_.at(e_.impl_->mesh.device_at(position));
  }
  std::optional<ShardedArray>& donated(std::size_t o) const {
    return inputs_[as_size(e_.impl_->plan.donated[o])];
  }

  /// The first output with this value.
  std::size_t first_of(ValueId id) const {
    const std::vector<ValueId>& all = e_.impl_->lowered.outputs;
    return static_cast<std::size_t>(std::find(all.begin(), all.end(), id) - all.begin());
  }

  bool is_made(std::size_t o) const { return e_.impl_->plan.is_made[o]; }

  void check_inputs() const {
    if (inputs_.size() != e_.impl_->lowered.inputs.size()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("run a program: found {} inputs, needed {}", inputs_.size(),
                              e_.impl_->lowered.inputs.size()));
    }
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const ArraySpec &found = inputs_[i]->spec(), needed = e_.input_spec(i);
      if (found.dtype == needed.dtype && found.shape == needed.shape &&
          found.sharding == needed.sharding) {
        continue;
      }
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("run a program: found input \"{}\" of {}{} cut as {}, needed {}{} cut "
                      "as {}",
                      e_.impl_->graph->inputs[i].label, name(found.dtype), to_string(found.shape),
                      found.sharding.to_string(), name(needed.dtype), to_string(needed.shape),
                      needed.sharding.to_string()));
    }
  }

  /// Finds outputs that take the memory of the inputs that they replace, if nothing else holds
  /// these inputs; see take_over().
  void find_in_place() {
    for (std::size_t o = 0; o < made_.size(); ++o) {
      in_place_[o] = e_.impl_->plan.donated[o] >= 0 && donated(o)->is_held_alone();
    }
  }

  void bind_inputs() {
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      for (const std::int64_t p : here_) {
        storage_.bind(e_.impl_->lowered.inputs[i], p, inputs_[i]->shard(p).data);
      }
    }
  }

  /// Binds outputs that take no input's memory; see take_over().
  void bind_outputs() {
    for (std::size_t o = 0; o < made_.size(); ++o) {
      if (!is_made(o) || in_place_[o]) continue;
      made_[o].resize(as_size(e_.impl_->mesh.size()));
      const Program::Value& made = value(output(o));
      const MemoryKind kind = output_kind(*e_.impl_->graph, e_.impl_->plan, o);
      for (const std::int64_t p : here_) {
        std::shared_ptr<Buffer>& shard = made_[o][as_size(p)];
        shard = device(p).allocate(shard_bytes(made, p), kind, made.label);
        storage_.bind(output(o), p, shard->data());
      }
    }
  }

  void bind_regions() {
    regions_.resize(as_size(e_.impl_->mesh.size()));
    for (const std::int64_t p : here_) {
      regions_[as_size(p)] = device(p).allocate(e_.impl_->plan.region_bytes, MemoryKind::activation,
                                                "values of a program");
    }
    for (std::size_t v = 0; v < e_.impl_->plan.homes.size(); ++v) {
      if (e_.impl_->plan.homes[v] != Home::region) continue;
      const auto id = static_cast<ValueId>(v);
      const ValueId root = e_.impl_->plan.roots[v];
      const ValueId host = e_.impl_->plan.hosts[as_size(root)];
      const ValueId array = host < 0 ? root : host;
      const bool is_in_array = e_.impl_->plan.homes[as_size(array)] != Home::region;
      for (const std::int64_t p : here_) {
        // An output's memory, or the bytes of an input: the value's step leaves them unchanged.
        std::byte* const data = is_in_array ? const_cast<std::byte*>(storage_.data(array, p))
                                            : regions_[as_size(p)]->data();
        storage_.bind(id, p, data + e_.impl_->plan.offset(v));
      }
    }
  }

  void take_over() {
    for (std::size_t o = 0; o < made_.size(); ++o) {
      if (!in_place_[o]) continue;
      made_[o] = *std::move(*donated(o)).release();
      for (const std::int64_t p : here_) {
        storage_.bind(output(o), p, made_[o][as_size(p)]->data());
      }
      storage_.watch(output(o), begun_[o]);
    }
  }

  /// Undoes take_over(), where nothing has begun to write.
  void give_back() {
    for (std::size_t o = 0; o < made_.size(); ++o) {
      if (!in_place_[o]) continue;
      donated(o).reset();
      if (begun_[o]) continue;
      donated(o) = ShardedArray::from_shards(
          devices_, e_.input_spec(as_size(e_.impl_->plan.donated[o])), std::move(made_[o]));
    }
  }

  std::vector<ShardedArray> outputs() {
    std::vector<ShardedArray> arrays;
    arrays.reserve(made_.size());
    for (std::size_t o = 0; o < made_.size(); ++o) {
      const ValueId id = output(o);
      if (e_.impl_->plan.homes[as_size(id)] == Home::input) {
        const std::vector<ValueId>& inputs = e_.impl_->lowered.inputs;
        const auto at = std::find(inputs.begin(), inputs.end(), id) - inputs.begin();
        arrays.push_back(*inputs_[static_cast<std::size_t>(at)]);
      } else if (!is_made(o)) {
        arrays.push_back(arrays[first_of(id)]);
      } else {
        arrays.push_back(
            ShardedArray::from_shards(devices_, value(id).spec(), std::move(made_[o])));
        if (in_place_[o]) donated(o).reset();
      }
    }
    return arrays;
  }

  const Executable& e_;
  Devices& devices_;
  std::span<std::optional<ShardedArray>> inputs_;
  std::vector<std::int64_t> here_;                          ///< the positions of this process
  std::vector<std::vector<std::shared_ptr<Buffer>>> made_;  ///< by output and position
  std::vector<bool> in_place_;                              ///< by output: in an input's memory
  std::vector<std::atomic<bool>> begun_;                    ///< of those: writing has begun
  Storage storage_;
  std::vector<std::shared_ptr<Buffer>> regions_;  ///< by position
};

std::vector<ShardedArray> Executable::run(Devices& devices,
                                          std::vector<ShardedArray> inputs) const {
  std::vector<std::optional<ShardedArray>> held;
  held.reserve(inputs.size());
  for (ShardedArray& input : inputs) held.emplace_back(std::move(input));
  return run(devices, std::span(held));
}

std::vector<ShardedArray> Executable::run(Devices& devices,
                                          std::span<std::optional<ShardedArray>> inputs) const {
  return OneRun(*this, devices, inputs).run();
}

PlannedMemory Executable::memory(std::int64_t position) const { return impl_->memory(position); }

void Executable::check_memory(const Devices& devices, const std::vector<bool>& is_here) const {
  std::vector<bool> is_donated;
  for (const std::int64_t input : impl_->plan.donated) is_donated.push_back(input >= 0);
  impl_->check_memory(devices, is_here, is_donated);
}

std::size_t Executable::Impl::input_bytes(std::int64_t position,
                                          const std::vector<bool>& is_counted) const {
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < lowered.inputs.size(); ++i) {
    if (is_counted[i]) bytes += shard_bytes(lowered.program.value(lowered.inputs[i]), position);
  }
  return bytes;
}

// The most that a device needs in addition to its current memory: all shards are as large as the
// largest.
std::size_t Executable::Impl::most_needed(const std::vector<bool>& is_here,
                                          const std::vector<bool>& is_donated) const {
  std::size_t most = plan.region_bytes;
  for (std::size_t i = 0; i < lowered.inputs.size(); ++i) {
    if (!is_here[i]) most += plan.bytes[as_size(lowered.inputs[i])];
  }
  for (std::size_t o = 0; o < lowered.outputs.size(); ++o) {
    if (plan.is_made[o] && !is_donated[o]) most += plan.bytes[as_size(lowered.outputs[o])];
  }
  return most;
}

void Executable::Impl::check_memory(const Devices& devices, const std::vector<bool>& is_here,
                                    const std::vector<bool>& is_donated) const {
  const std::size_t most = most_needed(is_here, is_donated);
  for (std::int64_t p = 0; p < mesh.size(); ++p) {
    const DeviceId device = mesh.device_at(p);
    if (!devices.is_addressable(device)) continue;
    const MemoryStats stats = devices.at(device).memory();
    const std::size_t free = stats.capacity_bytes - stats.in_use_bytes;
    if (most <= free) continue;
    // The run's needs there: its peak, less the inputs that are there already and the outputs in
    // donated memory.
    const std::size_t there = input_bytes(p, is_here);
    std::size_t needed = memory(p).peak_bytes - there;
    for (std::size_t o = 0; o < is_donated.size(); ++o) {
      if (plan.donated[o] >= 0 && !is_donated[o]) {
        needed += shard_bytes(lowered.program.value(lowered.outputs[o]), p);
      }
    }
    if (needed <= free) continue;
    const std::size_t others = stats.in_use_bytes - std::min(stats.in_use_bytes, there);
    std::string text = detail::out_of_memory(*graph, lowered, plan, device, stats, needed);
    text += "  " + shardwise::suggest(*graph, mesh, options, stats.capacity_bytes - others);
    throw Error(ErrorCode::resource_exhausted, text);
  }
}

namespace {

double flops_of(const Graph& graph, const Propagation& propagation,
                const PartitionedGraph& partitioned) {
  double total = 0;
  for (const PartitionedGraph::Step& step : partitioned.steps) {
    if (const auto* const loop = std::get_if<PartitionedGraph::Loop>(&step)) {
      const auto of = [](const PartitionedBody& body) {
        return flops_of(*body.graph, *body.propagation, body.partitioned);
      };
      const double most = std::max(of(*loop->body), loop->otherwise ? of(*loop->otherwise) : 0);
      total += static_cast<double>(trips(graph, *loop)) * most;
    }
    const auto* const compute = std::get_if<PartitionedGraph::Compute>(&step);
    if (compute == nullptr || compute->only_converts ||
        !row(graph.node(compute->node).op).traits().is_product) {
      continue;
    }
    double operations = 2;
    for (const Factor& factor : propagation.rules[as_size(compute->node)].factors) {
      operations *= static_cast<double>(factor.size);
    }
    total += operations;
  }
  return total;
}

}  // namespace

std::vector<CollectiveTotal> Executable::collectives() const {
  return shardwise::collectives(*impl_);
}

std::vector<Traffic> traffic(const Executable& executable) {
  return traffic(planned_program(executable));
}

FullestStep fullest_step(const Executable& executable) {
  return fullest_step(planned_program(executable));
}

std::string suggest(const Executable& executable, std::size_t capacity_bytes) {
  const PlannedProgram& planned = planned_program(executable);
  return suggest(*planned.graph, planned.mesh, planned.options, capacity_bytes);
}

double flops(const Executable& executable) {
  const PlannedProgram& planned = planned_program(executable);
  return flops_of(*planned.graph, planned.propagation, planned.partitioned);
}

std::string Executable::explain(NodeId node) const {
  std::string text = shardwise::explain(*impl_->graph, impl_->mesh, impl_->propagation, node);
  const auto value_text = [&](PartitionedGraph::ValueId id) {
    const PartitionedGraph::Value& value = impl_->partitioned.values[as_size(id)];
    return fmt::format("%{} as {}{}{}", value.node, to_text(value.cut, impl_->mesh),
                       value.partial != 0 ? " (parts of a sum)" : "",
                       value.is_wide ? " in f32" : "");
  };
  for (const PartitionedGraph::Step& step : impl_->partitioned.steps) {
    if (const auto* const compute = std::get_if<PartitionedGraph::Compute>(&step)) {
      if (compute->node != node) continue;
      text += compute->only_converts ? "  converted from" : "  computed from";
      for (const auto operand : compute->operands) text += " " + value_text(operand) + ",";
      text += " gives " + value_text(compute->result) + '\n';
    } else if (const auto* const loop = std::get_if<PartitionedGraph::Loop>(&step)) {
      if (loop->node != node) continue;
      text += fmt::format("  {} times {}, from", trips(*impl_->graph, *loop),
                          loop->otherwise ? "one of its bodies" : "its body");
      for (const auto operand : loop->operands) text += " " + value_text(operand) + ",";
      text += " gives";
      for (const auto result : loop->results) text += " " + value_text(result);
      text += '\n';
    } else {
      const auto& move = std::get<PartitionedGraph::Move>(step);
      if (move.consumer != node) continue;
      text += fmt::format("  {} of {} gives {}: {} bytes, {} on the wire\n", name(move.kind),
                          value_text(move.from), value_text(move.to), move.bytes, move.wire_bytes);
    }
  }
  // The choices are noted only on request.
  PartitionOptions noting = impl_->options.partition;
  noting.note_choices = true;
  const PartitionedGraph again =
      partition(*impl_->graph, impl_->mesh, impl_->propagation, impl_->input_cuts(), noting);
  for (const auto& [chosen, choices] : again.choices) {
    if (chosen == node) text += "  thought of:\n" + choices;
  }
  return text;
}

std::string Executable::explain(std::string_view label) const {
  std::vector<std::string_view> labels;
  for (const GraphInput& input : graph().inputs) {
    if (input.label == label) return explain(input.node);
    labels.push_back(input.label);
  }
  const std::vector<std::string_view> nearest = nearest_names(labels, label);
  throw Error(ErrorCode::no_such_name,
              fmt::format("explain: found no input \"{}\", needed one of {}", label,
                          fmt::join(nearest.empty() ? labels : nearest, ", ")));
}

std::string dump(const Executable& executable) {
  return "== traced\n" + dump(executable.graph()) + "== propagated\n" + dump_cuts(executable) +
         "== partitioned\n" + dump_steps(executable) + "== planned\n" + dump_plan(executable);
}

std::string dump_cuts(const Executable& executable) {
  const PlannedProgram& planned = planned_program(executable);
  return dump(*planned.graph, planned.mesh, planned.propagation);
}

std::string dump_steps(const Executable& executable) {
  const PlannedProgram& planned = planned_program(executable);
  return dump(*planned.graph, planned.mesh, planned.partitioned);
}

namespace {

void dump_plan(const Program& program, const MemoryPlan& plan,
               const std::map<std::size_t, LoweredBodies>& bodies, const std::string& indent,
               std::string& text) {
  for (std::size_t s = 0; s < program.steps().size(); ++s) {
    text += fmt::format("{}{}: {}", indent, s, name(program.steps()[s]));
    visit_step(
        program.steps()[s], [](ValueId) {},
        [&](ValueId value) {
          const std::size_t v = as_size(value);
          const Program::Value& made = program.value(value);
          text += fmt::format(" -> {}{} {}", name(made.dtype), to_string(made.shape),
                              made.layout.short_text());
          if (plan.homes[v] == Home::output) {
            text += " output";
          } else {
            const std::size_t root = as_size(plan.roots[v]);
            const bool is_in_output = plan.hosts[root] >= 0 || plan.homes[root] == Home::output;
            text +=
                fmt::format(" {}+{}", is_in_output ? "output" : name(program.values()[root].kind),
                            plan.offset(v));
          }
          text += fmt::format(" {} bytes", plan.bytes[v]);
        });
    const auto found = bodies.find(s);
    if (found != bodies.end()) {
      const auto add = [&](const LoweredBody& body) {
        dump_plan(body.body->program, body.plan, body.bodies, indent + "  ", text);
      };
      const auto& [body, otherwise] = found->second;
      text += otherwise ? " {\n" : fmt::format(" {} times {{\n", body->body->trips);
      add(*body);
      if (otherwise) {
        text += indent + "} else {\n";
        add(*otherwise);
      }
      text += indent + '}';
    }
    text += '\n';
  }
  text += fmt::format("{}values {} bytes\n", indent, plan.region_bytes);
}

}  // namespace

std::string dump_plan(const Executable& executable) {
  const PlannedProgram& planned = planned_program(executable);
  std::string text;
  dump_plan(planned.lowered.program, planned.plan, planned.lowered.bodies, "", text);
  return text;
}

}  // namespace shardwise
