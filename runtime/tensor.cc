#include "shardwise/runtime/tensor.h"

#include <fmt/format.h>

#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/runtime/detail/tracer_impl.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/ops/detail/body.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

struct DefaultMesh {
  std::mutex mutex;
  std::optional<Mesh> mesh;
};

DefaultMesh& the_default() {
  static DefaultMesh value;
  return value;
}

}  // namespace

std::optional<Mesh> default_mesh() {
  const std::lock_guard lock(the_default().mutex);
  return the_default().mesh;
}

void set_default_mesh(std::optional<Mesh> mesh) {
  const std::lock_guard lock(the_default().mutex);
  the_default().mesh = std::move(mesh);
}

const std::shared_ptr<Tensor::State>& Tensor::state() const {
  if (state_) return state_;
  throw Error(ErrorCode::invalid_argument,
              "use a tensor: found an empty handle, needed one that a tensor was assigned to");
}

const TensorType& Tensor::type() const { return state()->type; }

const std::string& Tensor::label() const { return state()->label; }

bool Tensor::has_value() const { return state_ && state_->has_value(); }

const ShardedArray& Tensor::array() const {
  if (state()->array) return *state()->array;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("read a tensor: {} {}", to_string(state()->type),
                          state()->on_host ? "is on the host, needed a mark or a step that uses it"
                          : !state()->lost.empty() ? state()->lost
                                                   : "has not been run, needed mark_step()"));
}

std::optional<std::span<const std::byte>> Tensor::on_host() const {
  if (!state()->on_host) return std::nullopt;
  return state()->host;
}

std::optional<ArraySpec> Tensor::placement() const {
  if (state()->array) return ArraySpec{dtype(), shape(), state()->array->sharding()};
  const std::optional<Mesh>& mesh = state()->tracer->mesh;
  if (!state()->mark || !mesh) return std::nullopt;
  return ArraySpec{dtype(), shape(), TracerImpl::marked_sharding(*state(), *mesh)};
}

Tensor::State& Tensor::settable(const TensorType& found) const {
  State& state = *this->state();
  if (!(found == state.type)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("set tensor \"{}\": found {}, needed {}", state.label, to_string(found),
                            to_string(state.type)));
  }
  if (state.tracer->is_recorded(state)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("set tensor \"{}\": found it in the step that is being recorded, needed "
                    "mark_step() before",
                    state.label));
  }
  return state;
}

void Tensor::set_value(ShardedArray array) {
  State& state = settable({array.dtype(), array.shape()});
  state.array = std::move(array);
  state.on_host = false;
  state.host = {};
  state.is_abstract = false;
}

void Tensor::set_value(std::vector<std::byte> bytes) {
  State& state = settable(type());
  const std::size_t needed = num_bytes(shape(), size_bytes(dtype()));
  if (bytes.size() != needed) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("set tensor \"{}\": found {} bytes, needed {}", state.label,
                            bytes.size(), needed));
  }
  state.host = std::move(bytes);
  state.on_host = true;
  state.is_abstract = false;
  state.array.reset();
}

std::span<const std::byte> Tensor::scalar() const {
  if (!shape().empty()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("read a scalar: found {}, needed a scalar", to_string(type())));
  }
  if (const auto host = on_host()) return *host;
  std::int64_t position = 0;  // each holds the scalar, if it is here
  const std::int64_t last = array().sharding().mesh().size() - 1;
  while (position < last && !array().is_addressable(position)) ++position;
  return {array().shard(position).data, size_bytes(dtype())};
}

double Tensor::scalar_as_double() const {
  const std::span<const std::byte> bytes = scalar();
  if (!is_computed(dtype())) {
    throw Error(ErrorCode::unsupported,
                fmt::format("read a scalar: found {}, needed a type that is computed with",
                            to_string(type())));
  }
  double value = 0;
  convert(dtype(), bytes.data(), DType::f64, reinterpret_cast<std::byte*>(&value), 1);
  return value;
}

Tensor Tensor::operator[](std::int64_t index) const {
  const Shape& whole = shape();
  const std::int64_t row = index < 0 && !whole.empty() ? index + whole[0] : index;
  if (whole.empty() || row < 0 || row >= whole[0]) {
    refuse_all("index", {*this},
               fmt::format("found index {}, needed one of the first dim's", index));
  }
  Dims begin = Dims::filled(whole.size(), 0), end = whole;
  begin[0] = row;
  end[0] = row + 1;
  return shardwise::reshape(shardwise::slice(*this, begin, end),
                            Shape(std::span(whole.begin() + 1, whole.end())));
}

Tensor append(const Tensor& context, Op op, std::span<const Tensor> operands, Attributes attributes,
              const TensorType& wanted) {
  TracerImpl& tracer = *context.state()->tracer;
  // Few have more than three.
  std::array<NodeRef, 3> few;
  std::vector<NodeRef> many;
  std::span<NodeRef> nodes(few.data(), std::min(operands.size(), few.size()));
  if (operands.size() > few.size()) {
    many.resize(operands.size());
    nodes = many;
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].state()->tracer.get() != &tracer) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}{}: found tensors of two tracers, needed one", name(op),
                              in_scope(tracer.graph(), tracer.graph().scope)));
    }
    nodes[i] = tracer.node(operands[i].state());
  }
  return tracer.wrap(append(NodeRef{&tracer.graph(), 0}, op, std::span<const NodeRef>(nodes),
                            std::move(attributes), wanted));
}

detail::CarryAndSlices<Tensor> record_with(const detail::Recorder& recorder,
                                           const detail::FlatBody<Tensor>& body,
                                           const detail::CarryAndSlices<Tensor>& given) {
  const std::vector<Tensor>& first =
      given.carry.tensors.empty() ? given.slices.tensors : given.carry.tensors;
  TracerImpl* tracer = first.empty() ? nullptr : first.front().state()->tracer.get();
  const auto node = [&](const Tensor& tensor) {
    if (tensor.state()->tracer.get() != tracer) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{}{}: found tensors of two tracers, needed one", recorder.operation,
                              in_scope(tracer->graph(), tracer->graph().scope)));
    }
    return tracer->node(tensor.state());
  };
  const auto nodes = [&](const detail::CarryAndSlices<Tensor>& tensors) {
    detail::CarryAndSlices<NodeRef> all{{{}, tensors.carry.paths}, {{}, tensors.slices.paths}};
    for (const Tensor& one : tensors.carry.tensors) all.carry.tensors.push_back(node(one));
    for (const Tensor& one : tensors.slices.tensors) all.slices.tensors.push_back(node(one));
    return all;
  };
  const auto wrapped = [&](const std::vector<NodeRef>& made) {
    std::vector<Tensor> tensors;
    tensors.reserve(made.size());
    for (const NodeRef& one : made) tensors.push_back(tracer->wrap(one));
    return tensors;
  };
  const detail::FlatBody<NodeRef> inner = [&](const std::vector<NodeRef>& carry,
                                              const std::vector<NodeRef>& slices) {
    const TracerImpl::InBody in_body(*tracer, *(carry.empty() ? slices : carry).front().graph);
    return nodes(body(wrapped(carry), wrapped(slices)));
  };
  const detail::CarryAndSlices<NodeRef> made = recorder.record(inner, nodes(given));
  return {{wrapped(made.carry.tensors), {}}, {wrapped(made.slices.tensors), {}}};
}

std::vector<Tensor> record_cond(const Tensor& predicate, const detail::FlatBranch<Tensor>& if_true,
                                const detail::FlatBranch<Tensor>& if_false) {
  TracerImpl& tracer = *predicate.state()->tracer;
  const auto inner = [&tracer](const detail::FlatBranch<Tensor>& branch) {
    return [&tracer, &branch] {
      const TracerImpl::InBody in_body(tracer, detail::innermost(tracer.graph()));
      detail::Leaves<Tensor> given = branch();
      detail::Leaves<NodeRef> nodes{{}, std::move(given.paths)};
      for (const Tensor& one : given.tensors) nodes.tensors.push_back(tracer.node(one.state()));
      return nodes;
    };
  };
  std::vector<Tensor> made;
  for (const NodeRef& one :
       detail::record_cond(tracer.node(predicate.state()), inner(if_true), inner(if_false))) {
    made.push_back(tracer.wrap(one));
  }
  return made;
}

void refuse(const Tensor& context, std::string_view operation, std::span<const Tensor> operands,
            const std::string& found_and_needed) {
  TracerImpl& tracer = *context.state()->tracer;
  std::vector<NodeRef> nodes;
  for (const Tensor& operand : operands) nodes.push_back(tracer.node(operand.state()));
  refuse({&tracer.graph(), 0}, operation, std::span<const NodeRef>(nodes), found_and_needed);
}

void mark_sharding(Tensor& tensor, const Mesh& mesh, const PartitionSpec& spec) {
  Tensor::State& state = *tensor.state();
  state.tracer->located("mark", state, [&] { state.tracer->mark(tensor.state(), mesh, spec); });
}

void mark_sharding(Tensor& tensor, const PartitionSpec& spec) {
  Tensor::State& state = *tensor.state();
  const std::optional<Mesh> mesh = state.tracer->mesh ? state.tracer->mesh : default_mesh();
  state.tracer->located("mark", state, [&] {
    if (!mesh) {
      throw Error(ErrorCode::invalid_argument,
                  "found no mesh, needed one: give it, or set_default_mesh()");
    }
    state.tracer->mark(tensor.state(), *mesh, spec);
  });
}

void clear_sharding(Tensor& tensor) {
  Tensor::State& state = *tensor.state();
  state.mark.reset();
  state.is_marked = false;
  if (GraphBuilder* const graph = state.tracer->graph_of(state))
    graph->node(state.node).mark.reset();
}

Tensor enable_manual_sharding(const Tensor& tensor, const PartitionSpec& spec) {
  const TensorType& type = tensor.type();
  TracerImpl& tracer = *tensor.state()->tracer;
  Shape local = type.shape;
  const PartitionSpec whole = tracer.located("enter a manual region with", *tensor.state(), [&] {
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
  return append_to(tensor, Op::enter_manual, {tensor}, ManualAttributes{whole},
                   {type.dtype, local});
}

Tensor disable_manual_sharding(const Tensor& tensor, const PartitionSpec& spec,
                               const Shape& shape) {
  const TensorType& type = tensor.type();
  TracerImpl& tracer = *tensor.state()->tracer;
  const auto [whole, parts] = tracer.located("leave a manual region with", *tensor.state(),
                                             [&] { return tracer.parts(spec, shape.size()); });
  std::int64_t replicas = tracer.mesh->size();
  for (const std::int64_t ways : parts) replicas /= ways;
  return append_to(tensor, Op::leave_manual, {tensor}, ManualAttributes{whole, replicas},
                   {type.dtype, shape});
}

Tensor all_reduce(const Tensor& tensor, std::span<const std::string> axes, Reduction reduction) {
  return append_to(tensor, Op::manual_all_reduce, {tensor},
                   ReduceAttributes{{axes.begin(), axes.end()}, reduction});
}

std::vector<Tensor> grad(const Tensor& loss, std::span<const Tensor> wrt) {
  TracerImpl& tracer = *loss.state()->tracer;
  std::vector<NodeId> nodes;
  for (const Tensor& tensor : wrt) nodes.push_back(tracer.node(tensor.state()).id);
  const NodeId root = tracer.node(loss.state()).id;
  std::vector<Tensor> gradients;
  for (const NodeId id : grad(tracer.graph(), root, nodes)) {
    gradients.push_back(tracer.wrap({&tracer.graph(), id}));
  }
  return gradients;
}

std::shared_ptr<GraphBuilder> graph_of(const Tensor& tensor) {
  TracerImpl& tracer = *tensor.state()->tracer;
  tracer.graph();  // begins a step if none is recorded
  return tracer.recording;
}

void keep_named(const Tensor& tensor, std::string_view name) {
  TracerImpl& tracer = *tensor.state()->tracer;
  if (GraphBuilder* const graph = tracer.graph_of(*tensor.state())) {
    keep_named(NodeRef{graph, tensor.state()->node}, name);
  }
}

std::map<std::string, Tensor> grad(const Tensor& loss, const std::map<std::string, Tensor>& wrt) {
  std::vector<Tensor> tensors;
  tensors.reserve(wrt.size());
  for (const auto& [name, tensor] : wrt) tensors.push_back(tensor);
  std::map<std::string, Tensor> gradients = wrt;
  const std::vector<Tensor> in_order = grad(loss, tensors);
  auto next = in_order.begin();
  for (auto& [name, gradient] : gradients) gradient = *next++;
  return gradients;
}

Tensor grad(const Tensor& loss, const Tensor& wrt) { return grad(loss, {wrt}).front(); }

}  // namespace shardwise
