#include "shardwise/runtime/tracer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "shardwise/runtime/detail/tracer_impl.h"
#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/runtime/program/detail/remote_copies.h"
#include "shardwise/runtime/spmd/detail/cut.h"
#include "shardwise/runtime/spmd/detail/planned.h"
#include "shardwise/runtime/timeline.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using State = TracerImpl::State;

/// By `bound`: weights and optimizer state that only the step holds.
std::vector<bool> may_be_replaced(const TracerImpl::States& bound) {
  std::vector<bool> may_be;
  for (const std::shared_ptr<State>& state : bound) {
    const bool is_weight =
        state->kind == MemoryKind::parameter || state->kind == MemoryKind::optimizer;
    may_be.push_back(is_weight && state.use_count() == 1);
  }
  return may_be;
}

/// Gives a tensor that has not been computed the value of another.
void take_value(State& to, State& from) {
  to.array = std::move(from.array);
  to.host = std::move(from.host);
  to.on_host = from.on_host;
  to.is_marked = from.is_marked;
  to.mark = from.mark;
  to.label = from.label;
  to.kind = from.kind;
  to.is_abstract = from.is_abstract;
}

}  // namespace

Sharding TracerImpl::marked_sharding(const State& state, const Mesh& mesh) {
  return to_sharding(to_cut(*state.mark, mesh, state.type.shape.size()), mesh, state.type.shape);
}

std::string TracerImpl::where(std::string_view operation, const State& state) {
  const std::string tensor = is_recorded(state)
                                 ? to_string(*graph_of(state), state.node)
                                 : fmt::format("\"{}\" : {}", state.label, to_string(state.type));
  return fmt::format("{} {}{}", operation, tensor, in_scope(graph(), graph().scope));
}

NodeRef TracerImpl::node(const std::shared_ptr<State>& state) {
  if (has_gone) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("use a tensor: found {} of a tracer that has gone, needed one of a "
                            "tracer that is there",
                            to_string(state->type)));
  }
  GraphBuilder& open = graph();
  GraphBuilder& g = outside.empty() ? open : *outside.front().recording;
  if (!is_recorded(*state)) {
    if (!state->may_be_input()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("use a tensor: {} {}", to_string(state->type),
                              state->lost.empty() ? "has no value: it was in a manual region of a "
                                                    "step that has run"
                                                  : state->lost));
    }
    state->node = append_input(g, state->type, state->label, state->kind);
    state->step = outside.empty() ? step : outside.front().step;
    inputs.push_back(state);
    const bool is_cut = state->array && mesh && state->array->sharding().mesh() == *mesh;
    g.node(state->node).mark =
        !state->mark && is_cut ? std::optional(state->array->sharding().spec()) : state->mark;
  }
  return {&open, detail::inside(open, {graph_of(*state), state->node})};
}

TracerImpl::InBody::InBody(TracerImpl& tracer, GraphBuilder& body) : tracer_(tracer) {
  tracer.outside.push_back({tracer.recording, std::move(tracer.pending), tracer.step});
  tracer.recording = {std::shared_ptr<GraphBuilder>(), &body};  // the scan's own
  tracer.pending.clear();
  tracer.step = ++tracer.steps;
}

TracerImpl::InBody::~InBody() {
  for (const std::weak_ptr<State>& held : tracer_.pending) {
    const std::shared_ptr<State> state = held.lock();
    if (state) state->lost = "is of the body of a scan or cond, needed one that this gives";
  }
  Outside& around = tracer_.outside.back();
  tracer_.recording = std::move(around.recording);
  tracer_.pending = std::move(around.pending);
  tracer_.step = around.step;
  tracer_.outside.pop_back();
  tracer_.set_scope(tracer_.scope);
}

void TracerImpl::check_no_body(const char* operation) const {
  if (outside.empty()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}: found an open body of a scan or cond, needed to be outside of it",
                          operation));
}

Tensor TracerImpl::wrap(const NodeRef& made) {
  auto state = std::make_shared<State>();
  state->tracer = shared_from_this();
  state->type = made.type();
  state->node = made.id;
  state->step = step;
  pending.push_back(state);
  return Tensor(std::move(state));
}

void TracerImpl::take_mesh(const Mesh& wanted) {
  if (mesh && !(*mesh == wanted)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("found mesh {}, needed the {} of this program", wanted.to_string(),
                            mesh->to_string()));
  }
  mesh = wanted;
}

void TracerImpl::mark(const std::shared_ptr<State>& state, const Mesh& wanted,
                      const PartitionSpec& spec) {
  const bool recorded = is_recorded(*state);
  if (recorded && graph_of(*state)->node(state->node).manual) {
    throw Error(ErrorCode::invalid_argument,
                "found a tensor of a manual region, needed one that is in none");
  }
  const std::size_t rank = state->type.shape.size();
  to_cut(spec, wanted, rank);  // throws if it does not fit
  take_mesh(wanted);
  const PartitionSpec whole = spec.padded(rank);
  std::optional<PartitionSpec>& mark =
      recorded ? graph_of(*state)->node(state->node).mark : state->mark;
  const bool inherited = state->array && !state->is_marked;
  if (mark && !(*mark == whole) && !inherited) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("found spec \"{}\", needed the \"{}\" that it is marked already: "
                            "clear_sharding takes a mark away",
                            whole.to_string(), mark->to_string()));
  }
  mark = whole;
  if (state->may_be_input()) {
    state->mark = whole;
    marked.push_back(state);
  }
  state->is_marked = true;
}

std::pair<PartitionSpec, Dims> TracerImpl::parts(const PartitionSpec& spec,
                                                 std::size_t rank) const {
  if (!mesh) {
    throw Error(ErrorCode::invalid_argument,
                "found no mesh, needed the tracer's or that of a mark");
  }
  Dims dims;
  const Cut cut = to_cut(spec, *mesh, rank);
  for (const AxisList& axes : cut) dims.push_back(ways(axes, *mesh));
  return {spec.padded(rank), dims};
}

// ---- The step.

TracerImpl::Recorded TracerImpl::take_recorded() {
  if (recording->block != 0) {
    throw Error(ErrorCode::invalid_argument,
                "run a step: found an open block of checkpoint(), needed to be outside of it");
  }
  seconds = {};
  seconds.trace = stopwatch.seconds();
  Recorded recorded{recording, {}, {}};
  for (const std::weak_ptr<State>& held : pending) {
    std::shared_ptr<State> state = held.lock();
    // In a manual region each device has its own value of a tensor, so it has no value to give.
    if (!state || !is_recorded(*state) || recorded.graph->node(state->node).manual) continue;
    recorded.graph->outputs.push_back(state->node);
    recorded.made.push_back(std::move(state));
  }
  recorded.bound = std::move(inputs);
  forget();
  return recorded;
}

void TracerImpl::run() {
  if (!recording) return place_marked({});
  const Recorded recorded = take_recorded();
  if (recorded.made.empty()) return place_marked({});
  try {
    run(recorded);
  } catch (...) {
    give_back(recorded, "has no value: the step that it was recorded in failed");
    throw;
  }
}

std::shared_ptr<const Executable> TracerImpl::plan() {
  graph();  // of no operation if none was recorded
  const Recorded recorded = take_recorded();
  const char* why = "has no value: the step that it was recorded in was planned, not run";
  try {
    compile(recorded);
  } catch (...) {
    give_back(recorded, why);
    throw;
  }
  give_back(recorded, why);
  return last;
}

void TracerImpl::keep_marks(const Recorded& recorded) {
  Graph& graph = *recorded.graph;
  for (const auto& [output, input] : replacements(graph, may_be_replaced(recorded.bound))) {
    const State& before = *recorded.bound[input];
    std::optional<PartitionSpec>& mark = graph.node(output).mark;
    if (!mark && before.is_marked) mark = before.mark;
  }
}

CompileOptions TracerImpl::compile(const Recorded& recorded) {
  const TimelineScope timed(devices.timeline().get(), TimelineEvent::Kind::compile, "compile");
  const Stopwatch compiling;
  if (!mesh) mesh = default_mesh();
  if (!mesh) mesh = Mesh::line(1);
  CompileOptions compile;
  keep_marks(recorded);
  detail::together(devices, [&] {
    compile = compile_options(recorded.bound);
    last = known.get(recorded.graph, *mesh, compile);
  });
  counters.hits += known.last_was_known() ? 1 : 0;
  counters.kept = static_cast<std::int64_t>(known.size());
  counters.dropped = known.dropped();
  seconds.compile = compiling.seconds();
  return compile;
}

void TracerImpl::run(const Recorded& recorded) {
  const States &bound = recorded.bound, &made = recorded.made;
  for (const std::shared_ptr<State>& state : bound) {
    if (!state->is_abstract) continue;
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("run a step: found the abstract tensor \"{}\" : {}, needed tensors with "
                    "values (plan() takes abstract ones)",
                    state->label, to_string(state->type)));
  }
  const CompileOptions compile = this->compile(recorded);
  const Stopwatch running;
  std::vector<ShardedArray> outputs;
  std::vector<std::optional<ShardedArray>> arrays(bound.size());
  try {
    place_marked(bound);
    check_memory(bound, *last);
    detail::together(devices, [&] { upload(bound, *last, compile, arrays); });
    outputs = last->run(devices, arrays);
  } catch (...) {
    for (std::size_t i = 0; i < bound.size(); ++i) {
      if (!bound[i]->has_value()) bound[i]->array = std::move(arrays[i]);
    }
    throw;
  }
  for (std::size_t o = 0; o < made.size(); ++o) {
    State& state = *made[o];
    state.array = std::move(outputs[o]);
    state.node = -1;
    // A tensor that replaces a weight is a weight.
    const std::int64_t old = last->replaced()[o];
    if (old >= 0) {
      state.kind = bound[as_size(old)]->kind;
      state.label = bound[as_size(old)]->label;
      state.is_marked = bound[as_size(old)]->is_marked;
    }
    state.mark = state.array->sharding().spec();
  }
  seconds.run = running.seconds();
  ++counters.traces;
}

CompileOptions TracerImpl::compile_options(const States& bound) const {
  CompileOptions compile;
  compile.partition.keep_gathered_weights = options.keep_gathered_weights;
  compile.nan_check = options.nan_check;
  for (const std::shared_ptr<State>& state : bound) {
    // use_count() == 1: the program replaced the old weight, so it may be donated.
    compile.may_donate.push_back(state.use_count() == 1);
    const bool is_here = state->array && state->array->sharding().mesh() == *mesh;
    compile.input_specs.push_back(is_here ? std::optional(state->array->sharding().spec())
                                          : state->mark);
  }
  return compile;
}

void TracerImpl::place_marked(const States& bound) {
  detail::together(devices, [&] {
    std::erase_if(marked, [&](const std::weak_ptr<State>& held) {
      const std::shared_ptr<State> state = held.lock();
      if (!state || !state->is_marked || !state->mark || !state->has_value()) return true;
      const Sharding wanted = marked_sharding(*state, *mesh);
      if (state->array && state->array->sharding() == wanted) return true;
      // The step itself places its inputs on the devices.
      if (std::find(bound.begin(), bound.end(), state) != bound.end()) return false;
      if (state->array) {
        state->array = state->array->redistribute(devices, wanted, state->label);
      } else {
        const ArraySpec spec{state->type.dtype, state->type.shape, wanted};
        state->array =
            ShardedArray::from_host(devices, spec, state->host, state->label, state->kind);
        state->on_host = false;
        state->host = {};
      }
      return true;
    });
  });
}

void TracerImpl::check_memory(const States& bound, const Executable& found) const {
  std::vector<bool> is_here;
  for (const std::shared_ptr<State>& state : bound) is_here.push_back(!state->on_host);
  if (std::find(is_here.begin(), is_here.end(), false) == is_here.end()) return;  // run() checks
  detail::together(devices, [&] { found.check_memory(devices, is_here); });
}

void TracerImpl::upload(const States& bound, const Executable& found, const CompileOptions& compile,
                        std::vector<std::optional<ShardedArray>>& arrays) {
  for (std::size_t i = 0; i < bound.size(); ++i) {
    State& state = *bound[i];
    const ArraySpec spec = found.input_spec(i);
    if (state.on_host) {
      state.array = ShardedArray::from_host(devices, spec, state.host, state.label, state.kind);
      state.on_host = false;
      state.host = {};
    } else if (!(state.array->sharding().mesh() == *mesh)) {
      state.array = state.array->redistribute(devices, spec.sharding, state.label);
    }
    if (compile.may_donate[i]) {
      arrays[i] = std::move(*state.array);
      state.array.reset();
    } else {
      arrays[i] = *state.array;
    }
  }
}

void TracerImpl::give_back(const Recorded& recorded, const char* why) const noexcept {
  const States &bound = recorded.bound, &made = recorded.made;
  try {
    std::vector<bool> is_replaced = may_be_replaced(bound);
    const std::vector<std::int64_t> numbers = input_numbers(*recorded.graph);
    for (const std::shared_ptr<State>& state : made) {
      const std::int64_t old = replaced_input(*recorded.graph, numbers, state->node, is_replaced);
      state->node = -1;
      if (old < 0) {
        state->lost = why;
        continue;
      }
      is_replaced[as_size(old)] = false;
      State& before = *bound[as_size(old)];
      if (before.may_be_input()) {
        take_value(*state, before);
      } else {
        state->lost = fmt::format(
            "has no value: the step that replaced \"{}\" failed when it had begun to write over it",
            before.label);
      }
    }
  } catch (...) {
    // Out of memory: tensors that were not reached have no value.
  }
}

Tracer::Tracer(Devices& devices, TracerOptions options)
    : impl_(std::make_shared<TracerImpl>(devices, std::move(options))) {}

// Tensors keep the tracer's state; the tracer's list of inputs must not keep them.
Tracer::~Tracer() {
  impl_->forget();
  impl_->has_gone = true;
}

Tensor TracerImpl::tensor(const TensorType& type, std::span<const std::byte> data,
                          std::string_view label, MemoryKind kind) {
  if (data.size() != num_bytes(type.shape, size_bytes(type.dtype))) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("make tensor \"{}\": found {} bytes for {}, needed {}", label, data.size(),
                    to_string(type), num_bytes(type.shape, size_bytes(type.dtype))));
  }
  auto state = std::make_shared<Tensor::State>();
  state->tracer = shared_from_this();
  state->type = type;
  state->label = label;
  state->kind = kind;
  state->host.assign(data.begin(), data.end());
  state->on_host = true;
  return Tensor(std::move(state));
}

Tensor Tracer::tensor(const TensorType& type, std::span<const std::byte> data,
                      std::string_view label, MemoryKind kind) {
  return impl_->tensor(type, data, label, kind);
}

Tensor tensor_beside(const Tensor& context, const TensorType& type, std::span<const std::byte> data,
                     std::string_view label, MemoryKind kind) {
  return context.state()->tracer->tensor(type, data, label, kind);
}

Tensor Tracer::tensor(ShardedArray array, std::string_view label, MemoryKind kind) {
  auto state = std::make_shared<Tensor::State>();
  state->tracer = impl_;
  state->type = {array.dtype(), array.shape()};
  state->label = label;
  state->kind = kind;
  if (impl_->mesh && array.sharding().mesh() == *impl_->mesh) state->mark = array.sharding().spec();
  state->array = std::move(array);
  return Tensor(std::move(state));
}

Tensor Tracer::abstract_tensor(const TensorType& type, std::string_view label, MemoryKind kind) {
  num_bytes(type.shape, size_bytes(type.dtype));  // throws if nothing has as many
  auto state = std::make_shared<Tensor::State>();
  state->tracer = impl_;
  state->type = type;
  state->label = label;
  state->kind = kind;
  state->is_abstract = true;
  return Tensor(std::move(state));
}

std::shared_ptr<const Executable> Tracer::plan() {
  impl_->check_no_body("plan a step");
  try {
    return impl_->plan();
  } catch (...) {
    impl_->forget();
    throw;
  }
}

void Tracer::mark_step() {
  impl_->check_no_body("run a step");
  try {
    impl_->run();
  } catch (...) {
    impl_->forget();
    throw;
  }
}

Tracer::Scope::Scope(std::shared_ptr<TracerImpl> tracer, std::string before)
    : tracer_(std::move(tracer)), before_(std::move(before)) {}

Tracer::Scope::~Scope() { tracer_->set_scope(before_); }

Tracer::Scope Tracer::scope(std::string_view name) {
  std::string outer = impl_->scope;
  impl_->set_scope(outer.empty() ? std::string(name) : fmt::format("{}/{}", outer, name));
  return Scope(impl_, std::move(outer));
}

TracerCounters Tracer::counters() const { return impl_->counters; }
StepSeconds Tracer::last_seconds() const { return impl_->seconds; }
const Executable* Tracer::last() const { return impl_->last.get(); }
const std::string& Tracer::last_miss() const { return impl_->known.miss(); }

}  // namespace shardwise
