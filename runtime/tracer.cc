#include "shardwise/runtime/tracer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "shardwise/runtime/default_mesh.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/runtime/timeline.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// What a tensor is at the moment: a value, a node of the step that is being recorded, or both.
struct Tensor::State {
  std::shared_ptr<TracerImpl> tracer;
  TensorType type;
  std::string label;
  MemoryKind kind = MemoryKind::array;

  std::optional<ShardedArray> array = {};
  std::vector<std::byte> host = {};  ///< the value, as long as no step has needed it
  bool on_host = false;
  bool is_marked = false;                  ///< by the user; else an array's mark is how it is cut
  std::optional<PartitionSpec> mark = {};  ///< of a tensor with a value

  NodeId node = -1;
  std::int64_t step = -1;  ///< of the node
};

struct TracerImpl : std::enable_shared_from_this<TracerImpl> {
  using State = Tensor::State;

  TracerImpl(Devices& tracer_devices, TracerOptions tracer_options)
      : devices(tracer_devices), options(std::move(tracer_options)), mesh(options.mesh) {}

  struct Known {
    std::uint64_t hash;
    CompileOptions options;
    Mesh mesh;
    std::unique_ptr<Executable> executable;
  };

  bool is_recorded(const State& state) const { return state.node >= 0 && state.step == step; }

  Graph& graph() {
    if (!recording) {
      recording = std::make_shared<Graph>();
      set_scope(scope);
      // As many as the step before had: nodes are large, and moving them takes longer than making.
      if (last != nullptr) {
        recording->nodes.reserve(last->graph().nodes.size());
        pending.reserve(last->graph().nodes.size());
      }
      stopwatch = Stopwatch();
    }
    return *recording;
  }

  /// What is recorded from now on belongs to it.
  void set_scope(const std::string& path) {
    scope = path;
    if (!recording) return;
    std::vector<std::string>& scopes = recording->scopes;
    const auto at = std::find(scopes.begin(), scopes.end(), path);
    recording->scope = static_cast<std::int32_t>(at - scopes.begin());
    if (at == scopes.end()) scopes.push_back(path);
  }

  /// What body() gives. Its errors say what was done to which tensor, and where in the program.
  template <class Body>
  auto located(std::string_view operation, const State& state, const Body& body) {
    try {
      return body();
    } catch (const Error& error) {
      const std::string tensor =
          is_recorded(state) ? to_string(*recording, state.node)
                             : fmt::format("\"{}\" : {}", state.label, to_string(state.type));
      throw Error(error.code(), fmt::format("{} {}{}: {}", operation, tensor,
                                            in_scope(graph(), graph().scope), error.what()));
    }
  }

  /// The tensor's node in this step; a tensor with a value becomes an input.
  NodeRef node(const std::shared_ptr<State>& state) {
    Graph& g = graph();
    if (!is_recorded(*state)) {
      if (!state->array && !state->on_host) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("use a tensor: {} has no value: the step that it was recorded in "
                                "failed",
                                to_string(state->type)));
      }
      state->node = append_input(g, state->type, state->label, state->kind);
      state->step = step;
      inputs.push_back(state);
      const bool is_cut = state->array && mesh && state->array->sharding().mesh() == *mesh;
      g.node(state->node).mark =
          !state->mark && is_cut ? std::optional(state->array->sharding().spec()) : state->mark;
    }
    return {&g, state->node};
  }

  Tensor wrap(const NodeRef& made) {
    auto state = std::make_shared<State>();
    state->tracer = shared_from_this();
    state->type = made.type();
    state->node = made.id;
    state->step = step;
    pending.push_back(state);
    return Tensor(std::move(state));
  }

  void take_mesh(const Mesh& wanted) {
    if (mesh && !(*mesh == wanted)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("found mesh {}, needed the {} of this program", wanted.to_string(),
                              mesh->to_string()));
    }
    mesh = wanted;
  }

  void mark(State& state, const Mesh& wanted, const PartitionSpec& spec);

  /// The spec as text for a node, and into how many parts it cuts each dim.
  std::pair<std::string, Dims> parts(const PartitionSpec& spec, std::size_t rank) const {
    if (!mesh) {
      throw Error(ErrorCode::invalid_argument,
                  "found no mesh, needed the tracer's or that of a mark");
    }
    Dims dims;
    const Cut cut = to_cut(spec, *mesh, rank);
    for (const AxisList& axes : cut) dims.push_back(ways(axes, *mesh));
    return {spec.padded(rank).to_string(), dims};
  }

  void forget() {
    recording.reset();
    inputs.clear();
    pending.clear();
    ++step;
  }

  void run();
  CompileOptions compile_options(const std::vector<std::shared_ptr<State>>& bound) const;

  /// The inputs' arrays, on the devices; those that may be donated are the step's alone.
  std::vector<ShardedArray> upload(const std::vector<std::shared_ptr<State>>& bound,
                                   const Executable& found, const CompileOptions& compile);
  const Executable& executable(const std::shared_ptr<Graph>& traced, const CompileOptions& compile);
  std::string why_missed(const Graph& traced, const CompileOptions& compile) const;

  Devices& devices;
  TracerOptions options;
  std::optional<Mesh> mesh;
  std::string scope;

  std::shared_ptr<Graph> recording;
  std::vector<std::shared_ptr<State>> inputs;  ///< by Graph::inputs
  std::vector<std::weak_ptr<State>> pending;   ///< recorded in this step
  std::int64_t step = 0;
  Stopwatch stopwatch;

  std::vector<Known> known;
  const Executable* last = nullptr;
  TracerCounters counters;
  StepSeconds seconds;
  std::string miss;
};

const TensorType& Tensor::type() const { return state_->type; }

bool Tensor::has_value() const { return state_->array.has_value() || state_->on_host; }

const ShardedArray& Tensor::array() const {
  if (state_->array) return *state_->array;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("read a tensor: {} {}", to_string(state_->type),
                          state_->on_host ? "is on the host, needed a step that uses it"
                                          : "has not been run, needed mark_step()"));
}

double Tensor::item() const {
  if (!shape().empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("read a scalar: found {}, needed a scalar", to_string(type())));
  }
  if (!is_computed(dtype())) {
    throw Error(ErrorCode::unsupported,
                fmt::format("read a scalar: found {}, needed a type that is computed with",
                            to_string(type())));
  }
  std::int64_t position = 0;  // each holds the scalar, where it is here
  const std::int64_t last = array().sharding().mesh().size() - 1;
  while (position < last && !array().is_addressable(position)) ++position;
  const ConstBoxView shard = array().shard(position);
  double value = 0;
  convert(dtype(), shard.data, DType::f64, reinterpret_cast<std::byte*>(&value), 1);
  return value;
}

Tensor append(const Tensor& context, Op op, std::span<const Tensor> operands, Attributes attributes,
              const TensorType& wanted) {
  TracerImpl& tracer = *context.state_->tracer;
  // Few have more than three.
  std::array<NodeRef, 3> few;
  std::vector<NodeRef> many;
  std::span<NodeRef> nodes(few.data(), std::min(operands.size(), few.size()));
  if (operands.size() > few.size()) {
    many.resize(operands.size());
    nodes = many;
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].state_->tracer.get() != &tracer) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}{}: found tensors of two tracers, needed one", name(op),
                              in_scope(tracer.graph(), tracer.graph().scope)));
    }
    nodes[i] = tracer.node(operands[i].state_);
  }
  return tracer.wrap(append(NodeRef{&tracer.graph(), 0}, op, std::span<const NodeRef>(nodes),
                            std::move(attributes), wanted));
}

void refuse(const Tensor& context, std::string_view operation, std::span<const Tensor> operands,
            const std::string& found_and_needed) {
  TracerImpl& tracer = *context.state_->tracer;
  std::vector<NodeRef> nodes;
  for (const Tensor& operand : operands) nodes.push_back(tracer.node(operand.state_));
  refuse({&tracer.graph(), 0}, operation, std::span<const NodeRef>(nodes), found_and_needed);
}

void TracerImpl::mark(State& state, const Mesh& wanted, const PartitionSpec& spec) {
  const bool recorded = is_recorded(state);
  if (recorded && graph().node(state.node).manual) {
    throw Error(ErrorCode::invalid_argument,
                "found a tensor of a manual region, needed one that is in none");
  }
  const std::size_t rank = state.type.shape.size();
  to_cut(spec, wanted, rank);  // throws where it does not fit
  take_mesh(wanted);
  const PartitionSpec whole = spec.padded(rank);
  std::optional<PartitionSpec>& mark = recorded ? graph().node(state.node).mark : state.mark;
  const bool inherited = state.array && !state.is_marked;
  if (mark && !(*mark == whole) && !inherited) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("found spec \"{}\", needed the \"{}\" that it is marked already: "
                            "clear_sharding takes a mark away",
                            whole.to_string(), mark->to_string()));
  }
  mark = whole;
  if (state.array || state.on_host) state.mark = whole;
  state.is_marked = true;
}

void mark_sharding(Tensor& tensor, const Mesh& mesh, const PartitionSpec& spec) {
  Tensor::State& state = *tensor.state_;
  state.tracer->located("mark", state, [&] { state.tracer->mark(state, mesh, spec); });
}

void mark_sharding(Tensor& tensor, const PartitionSpec& spec) {
  Tensor::State& state = *tensor.state_;
  const std::optional<Mesh> mesh = state.tracer->mesh ? state.tracer->mesh : default_mesh();
  state.tracer->located("mark", state, [&] {
    if (!mesh) {
      throw Error(ErrorCode::invalid_argument,
                  "found no mesh, needed one: give it, or set_default_mesh()");
    }
    state.tracer->mark(state, *mesh, spec);
  });
}

void clear_sharding(Tensor& tensor) {
  Tensor::State& state = *tensor.state_;
  state.mark.reset();
  state.is_marked = false;
  if (state.tracer->is_recorded(state)) state.tracer->graph().node(state.node).mark.reset();
}

Tensor enable_manual_sharding(const Tensor& tensor, const PartitionSpec& spec) {
  const TensorType& type = tensor.type();
  TracerImpl& tracer = *tensor.state_->tracer;
  Shape local = type.shape;
  const std::string text = tracer.located("enter a manual region with", *tensor.state_, [&] {
    const auto [padded, parts] = tracer.parts(spec, local.size());
    for (std::size_t dim = 0; dim < local.size(); ++dim) {
      if (local[dim] % parts[dim] != 0) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("found dim {} of {} cut {} ways, needed a number of ways that "
                                "divides it",
                                dim, to_string(type), parts[dim]));
      }
      local[dim] /= parts[dim];
    }
    return padded;
  });
  return append_to(tensor, Op::enter_manual, {tensor}, {.text = text}, {type.dtype, local});
}

Tensor disable_manual_sharding(const Tensor& tensor, const PartitionSpec& spec,
                               const Shape& shape) {
  const TensorType& type = tensor.type();
  TracerImpl& tracer = *tensor.state_->tracer;
  const auto [text, parts] = tracer.located("leave a manual region with", *tensor.state_,
                                            [&] { return tracer.parts(spec, shape.size()); });
  std::int64_t replicas = tracer.mesh->size();
  for (const std::int64_t ways : parts) replicas /= ways;
  return append_to(tensor, Op::leave_manual, {tensor}, {.dims = {replicas}, .text = text},
                   {type.dtype, shape});
}

Tensor all_reduce(const Tensor& tensor, std::span<const std::string> axes, Reduction reduction) {
  std::string text;
  for (const std::string& axis : axes) text += (text.empty() ? "" : "+") + axis;
  return append_to(tensor, Op::manual_all_reduce, {tensor},
                   {.number = static_cast<double>(reduction), .text = text});
}

std::vector<Tensor> grad(const Tensor& loss, std::span<const Tensor> wrt) {
  TracerImpl& tracer = *loss.state_->tracer;
  std::vector<NodeId> nodes;
  for (const Tensor& tensor : wrt) nodes.push_back(tracer.node(tensor.state_).id);
  const NodeId root = tracer.node(loss.state_).id;
  std::vector<Tensor> gradients;
  for (const NodeId id : grad(tracer.graph(), root, nodes)) {
    gradients.push_back(tracer.wrap({&tracer.graph(), id}));
  }
  return gradients;
}

// ---- The step.

void TracerImpl::run() {
  if (!recording) return;
  seconds = {};
  seconds.trace = stopwatch.seconds();
  const std::shared_ptr<Graph> traced = recording;
  std::vector<std::shared_ptr<State>> made;
  for (const std::weak_ptr<State>& held : pending) {
    std::shared_ptr<State> state = held.lock();
    // Of a tensor in a manual region each device has another value: there is none to give.
    if (!state || !is_recorded(*state) || traced->node(state->node).manual) continue;
    traced->outputs.push_back(state->node);
    made.push_back(std::move(state));
  }
  const std::vector<std::shared_ptr<State>> bound = std::move(inputs);
  forget();
  if (made.empty()) return;
  std::optional<TimelineScope> compile_scope(std::in_place, devices.timeline().get(),
                                             TimelineEvent::Kind::compile, "compile");
  const Stopwatch compiling;
  if (!mesh) mesh = default_mesh();
  if (!mesh) mesh = Mesh::line(1);
  const CompileOptions compile = compile_options(bound);
  const Executable& found = executable(traced, compile);
  last = &found;
  seconds.compile = compiling.seconds();
  compile_scope.reset();
  const Stopwatch running;
  std::vector<ShardedArray> outputs = found.run(devices, upload(bound, found, compile));
  for (std::size_t o = 0; o < made.size(); ++o) {
    State& state = *made[o];
    state.array = std::move(outputs[o]);
    state.node = -1;
    // What replaces a weight is a weight.
    const std::int64_t old = found.replaced()[o];
    if (old >= 0) {
      state.kind = bound[as_size(old)]->kind;
      state.label = bound[as_size(old)]->label;
    }
    state.mark = state.array->sharding().spec();
  }
  seconds.run = running.seconds();
  ++counters.traces;
}

CompileOptions TracerImpl::compile_options(const std::vector<std::shared_ptr<State>>& bound) const {
  CompileOptions compile;
  compile.partition.keep_gathered_weights = options.keep_gathered_weights;
  compile.nan_check = options.nan_check;
  for (const std::shared_ptr<State>& state : bound) {
    // Only this step holds the tensor: the program has replaced it.
    compile.may_donate.push_back(state.use_count() == 1);
    const bool is_here = state->array && state->array->sharding().mesh() == *mesh;
    compile.input_specs.push_back(is_here ? std::optional(state->array->sharding().spec())
                                          : state->mark);
  }
  return compile;
}

std::vector<ShardedArray> TracerImpl::upload(const std::vector<std::shared_ptr<State>>& bound,
                                             const Executable& found,
                                             const CompileOptions& compile) {
  std::vector<ShardedArray> arrays;
  for (std::size_t i = 0; i < bound.size(); ++i) {
    State& state = *bound[i];
    const ArraySpec& spec = found.input_spec(i);
    if (state.on_host) {
      state.array = ShardedArray::from_host(devices, spec, state.host, state.label, state.kind);
      state.on_host = false;
      state.host = {};
    } else if (!(state.array->sharding().mesh() == *mesh)) {
      state.array = state.array->redistribute(devices, spec.sharding, state.label);
    }
    if (compile.may_donate[i]) {
      arrays.push_back(std::move(*state.array));
      state.array.reset();
    } else {
      arrays.push_back(*state.array);
    }
  }
  return arrays;
}

const Executable& TracerImpl::executable(const std::shared_ptr<Graph>& traced,
                                         const CompileOptions& compile) {
  const std::uint64_t key = hash(*traced);
  for (const Known& one : known) {
    if (one.hash == key && one.mesh == *mesh && one.options.may_donate == compile.may_donate &&
        one.options.input_specs == compile.input_specs &&
        same_program(one.executable->graph(), *traced)) {
      ++counters.hits;
      return *one.executable;
    }
  }
  miss = why_missed(*traced, compile);
  known.push_back({key, compile, *mesh, std::make_unique<Executable>(traced, *mesh, compile)});
  return *known.back().executable;
}

std::string TracerImpl::why_missed(const Graph& traced, const CompileOptions& compile) const {
  if (known.empty()) return "";
  const Known& one = known.back();
  const Graph& before = one.executable->graph();
  if (!(one.mesh == *mesh)) {
    return fmt::format("found mesh {}, had {}", mesh->to_string(), one.mesh.to_string());
  }
  for (std::size_t i = 0; i < std::min(traced.nodes.size(), before.nodes.size()); ++i) {
    const auto id = static_cast<NodeId>(i);
    const std::string now = to_string(traced, id), then = to_string(before, id);
    if (now != then) return fmt::format("found {}, had {}", now, then);
  }
  if (traced.nodes.size() != before.nodes.size()) {
    return fmt::format("found {} operations, had {}", traced.nodes.size(), before.nodes.size());
  }
  if (traced.outputs != before.outputs) {
    return fmt::format("found {} tensors still held, had {}, or others", traced.outputs.size(),
                       before.outputs.size());
  }
  for (std::size_t i = 0; i < traced.inputs.size(); ++i) {
    const std::string& label = traced.inputs[i].label;
    if (compile.input_specs[i] != one.options.input_specs[i]) {
      const auto text = [](const std::optional<PartitionSpec>& spec) {
        return spec ? spec->to_string() : std::string("unmarked");
      };
      return fmt::format("found input \"{}\" cut as {}, had {}", label,
                         text(compile.input_specs[i]), text(one.options.input_specs[i]));
    }
    if (compile.may_donate[i] != one.options.may_donate[i]) {
      return fmt::format("found input \"{}\" {} by the program after the step, had it {}", label,
                         compile.may_donate[i] ? "not held" : "held",
                         compile.may_donate[i] ? "held" : "not held");
    }
  }
  return "found another kind of an input";
}

Tracer::Tracer(Devices& devices, TracerOptions options)
    : impl_(std::make_shared<TracerImpl>(devices, std::move(options))) {}

// Tensors keep the tracer's state; the tracer's list of inputs must not keep them.
Tracer::~Tracer() { impl_->forget(); }

Tensor Tracer::tensor(const TensorType& type, std::span<const std::byte> data,
                      std::string_view label, MemoryKind kind) {
  if (data.size() != num_bytes(type.shape, size_bytes(type.dtype))) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("make tensor \"{}\": found {} bytes for {}, needed {}", label, data.size(),
                    to_string(type), num_bytes(type.shape, size_bytes(type.dtype))));
  }
  auto state = std::make_shared<Tensor::State>();
  state->tracer = impl_;
  state->type = type;
  state->label = label;
  state->kind = kind;
  state->host.assign(data.begin(), data.end());
  state->on_host = true;
  return Tensor(std::move(state));
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

void Tracer::mark_step() {
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
const Executable* Tracer::last() const { return impl_->last; }
const std::string& Tracer::last_miss() const { return impl_->miss; }

}  // namespace shardwise
