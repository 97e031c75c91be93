#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/ops/functions.h"
#include "shardwise/runtime/sharded_array.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/mesh.h"
#include "shardwise/shard/partition_spec.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise {

class Tensor;
class Tracer;

/// As for nodes; see ops/build.h.
[[noreturn]] void refuse(const Tensor& context, std::string_view operation,
                         std::span<const Tensor> operands, const std::string& found_and_needed);

/// A tensor of a traced program: written as if for one big device. Operations (ops/functions.h) do
/// not compute: they record the computation, and Tracer::mark_step() runs it, sharded as the marks
/// say. After that, tensors that are still held have values, and tensors that are only marked are
/// on the devices.
///
/// A handle: copies are the same tensor. Thread-compatible, with its tracer.
///
///   Tensor h = tanh(einsum("bi,io->bo", x, w));      // recorded
///   tracer.mark_step();
///   h.array().to_host();
class Tensor {
 public:
  /// No tensor yet, to be assigned to. All but has_value() throw invalid_argument.
  Tensor() = default;

  const TensorType& type() const;
  DType dtype() const { return type().dtype; }
  const Shape& shape() const { return type().shape; }

  /// It has a value: it was given one, or its step has run.
  bool has_value() const;

  /// The value. Throws invalid_argument if it has none, or is still on the host (mark_step() takes
  /// it to the devices if it is marked or a step uses it).
  const ShardedArray& array() const;

  /// The value, whole, as elements. Throws as array(), and invalid_argument if T is not the dtype.
  template <TensorElement T>
  std::vector<T> to_vector() const {
    return array().to_vector<T>();
  }

  /// The value of a scalar, as a double. Throws as array(), and invalid_argument for another shape.
  double item() const;

 private:
  friend class Tracer;
  friend struct TracerImpl;
  friend Tensor append(const Tensor&, Op, std::span<const Tensor>, Attributes, const TensorType&);
  friend void refuse(const Tensor&, std::string_view, std::span<const Tensor>, const std::string&);
  friend void mark_sharding(Tensor&, const Mesh&, const PartitionSpec&);
  friend void mark_sharding(Tensor&, const PartitionSpec&);
  friend void clear_sharding(Tensor&);
  friend Tensor enable_manual_sharding(const Tensor&, const PartitionSpec&);
  friend Tensor disable_manual_sharding(const Tensor&, const PartitionSpec&, const Shape&);
  friend std::vector<Tensor> grad(const Tensor&, std::span<const Tensor>);
  friend std::shared_ptr<Graph> graph_of(const Tensor&);
  friend void keep_named(const Tensor&, std::string_view);
  struct State;
  explicit Tensor(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const;

  std::shared_ptr<State> state_;
};

/// Records an operation; see ops/functions.h.
Tensor append(const Tensor& context, Op op, std::span<const Tensor> operands,
              Attributes attributes = {}, const TensorType& wanted = {});

/// Says how a tensor is to be cut: a parameter, an input, an intermediate value or a gradient. All
/// marks of a program are on one mesh. Throws invalid_argument if the tensor already has another
/// mark (see clear_sharding), or the program has another mesh; and what the spec's own check
/// throws.
void mark_sharding(Tensor& tensor, const Mesh& mesh, const PartitionSpec& spec);

/// On the tracer's mesh, or the default mesh if the tracer has none yet.
void mark_sharding(Tensor& tensor, const PartitionSpec& spec);

/// The mesh that a program has named as its own, if any: PyTorch/XLA's set_global_mesh() and
/// get_global_mesh(). A tracer that was given no mesh takes it, in mark_sharding() without a mesh
/// and in the first step; nothing else in Shardwise reads it. Thread-safe.
std::optional<Mesh> default_mesh();

/// Replaces it; without a value there is none again.
void set_default_mesh(std::optional<Mesh> mesh);

/// Takes the mark away.
void clear_sharding(Tensor& tensor);

/// Manual regions (the seed's enable_manual_sharding and disable_manual_sharding, JAX's shard_map):
/// a tensor as each device has it, cut as `spec`. Each device's operations work on its own shard,
/// until disable_manual_sharding() makes a tensor of `shape` of the shards again, cut as `spec`.
/// Shards that the spec gives to several devices must then be equal. all_reduce() combines the
/// shards of the devices that differ only along the axes.
///
/// The tracer needs its mesh before; dims must divide evenly. Throws invalid_argument if one does
/// not, for a tensor that is in a region already or in none, and as mark_sharding().
Tensor enable_manual_sharding(const Tensor& tensor, const PartitionSpec& spec);
Tensor disable_manual_sharding(const Tensor& tensor, const PartitionSpec& spec, const Shape& shape);
Tensor all_reduce(const Tensor& tensor, std::span<const std::string> axes, Reduction reduction);

/// The gradient of a scalar with respect to each of some tensors; see autodiff.h. They may be
/// marked like all tensors.
std::vector<Tensor> grad(const Tensor& loss, std::span<const Tensor> wrt);
inline std::vector<Tensor> grad(const Tensor& loss, std::initializer_list<Tensor> wrt) {
  return grad(loss, std::span<const Tensor>(wrt.begin(), wrt.size()));
}

/// For checkpoint() and checkpoint_name() (autodiff.h).
std::shared_ptr<Graph> graph_of(const Tensor& tensor);
void keep_named(const Tensor& tensor, std::string_view name);

}  // namespace shardwise
