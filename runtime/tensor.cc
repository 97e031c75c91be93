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

bool Tensor::has_value() const { return state_ && state_->has_value(); }

const ShardedArray& Tensor::array() const {
  if (state()->array) return *state()->array;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("read a tensor: {} {}", to_string(state()->type),
                          state()->on_host ? "is on the host, needed a mark or a step that uses it"
                          : !state()->lost.empty() ? state()->lost
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
  std::int64_t position = 0;  // each holds the scalar, if it is here
  const std::int64_t last = array().sharding().mesh().size() - 1;
  while (position < last && !array().is_addressable(position)) ++position;
  const ConstBoxView shard = array().shard(position);
  double value = 0;
  convert(dtype(), shard.data, DType::f64, reinterpret_cast<std::byte*>(&value), 1);
  return value;
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
  if (state.tracer->is_recorded(state)) state.tracer->graph().node(state.node).mark.reset();
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

std::shared_ptr<Graph> graph_of(const Tensor& tensor) {
  TracerImpl& tracer = *tensor.state()->tracer;
  tracer.graph();  // begins a step if none is recorded
  return tracer.recording;
}

void keep_named(const Tensor& tensor, std::string_view name) {
  TracerImpl& tracer = *tensor.state()->tracer;
  if (tracer.is_recorded(*tensor.state())) {
    keep_named(NodeRef{tracer.recording.get(), tensor.state()->node}, name);
  }
}

}  // namespace shardwise
