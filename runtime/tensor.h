#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <iosfwd>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/detail/tensor_guesses.h"
#include "shardwise/runtime/ops/autodiff.h"
#include "shardwise/runtime/ops/control.h"
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
/// not compute: they record the computation, and Tracer::mark_step() runs it, sharded by the marks.
/// After that, tensors that are still held have values, and tensors that are only marked are on the
/// devices.
///
/// A handle: copies are the same tensor. Thread-compatible, with its tracer.
///
///   Tensor h = tanh(einsum("bi,io->bo", x, w));      // recorded
///   tracer.mark_step();
///   h.array().to_host();
class Tensor : public first_guesses::OfTensor {
 public:
  /// No tensor yet, to be assigned to. All but has_value() throw invalid_argument.
  Tensor() = default;

  const TensorType& type() const;
  DType dtype() const { return type().dtype; }
  const Shape& shape() const { return type().shape; }

  /// Its name when it was made, or that of the weight that it has replaced; "" for others.
  const std::string& label() const;

  /// True if it has a value: it was given one, or its step has run.
  bool has_value() const;

  /// The value. Throws invalid_argument if it has none, or is still on the host (mark_step() takes
  /// it to the devices if it is marked or a step uses it).
  const ShardedArray& array() const;

  /// The value, whole, as elements; also while it is on the host. Throws as array(), and
  /// invalid_argument if T is not the dtype.
  template <TensorElement T>
  std::vector<T> to_vector() const {
    const std::optional<std::span<const std::byte>> host = on_host();
    if (!host) return array().to_vector<T>();
    check_dtype("read a tensor", dtype(), dtype_of<T>());
    return filled_vector<T>(host->size() / sizeof(T), [&](std::span<std::byte> out) {
      std::copy(host->begin(), host->end(), out.begin());
    });
  }

  /// The bytes of a value that was not needed on the devices yet; absent if it is there, or does
  /// not exist. Valid until the next step.
  std::optional<std::span<const std::byte>> on_host() const;

  /// The placement of the value on the devices, or the future one by its mark; absent if a step is
  /// to choose.
  std::optional<ArraySpec> placement() const;

  /// Replaces the value, for all handles of this tensor, or gives an abstract one its value. Throws
  /// invalid_argument if the dtype, the shape or the number of bytes differs, or the step that is
  /// being recorded uses it.
  void set_value(ShardedArray array);
  void set_value(std::vector<std::byte> bytes);
  template <ElementValues R>
  void set_value(const R& values) {
    check_dtype("set the value of \"" + label() + '"', dtype_of_elements<const R&>(), dtype());
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
    set_value(std::vector<std::byte>(bytes.begin(), bytes.end()));
  }

  /// The value of a scalar: as a double for any dtype, or as a T, which must be the dtype. Throws
  /// as array(), and invalid_argument for another shape or dtype.
  template <class T = double>
  T item() const {
    if constexpr (std::same_as<T, double>) {
      return scalar_as_double();
    } else {
      check_dtype("read a scalar", dtype(), dtype_of<T>());
      T value;
      std::memcpy(&value, scalar().data(), sizeof(T));
      return value;
    }
  }

  /// The slice at this index of the first dim, which is removed; -1 is the last. Recorded as a
  /// slice and a reshape. Throws invalid_argument if the index does not exist.
  Tensor operator[](std::int64_t index) const;

 private:
  friend class Tracer;
  friend struct TracerImpl;
  friend Tensor tensor_beside(const Tensor&, const TensorType&, std::span<const std::byte>,
                              std::string_view, MemoryKind);
  friend Tensor append(const Tensor&, Op, std::span<const Tensor>, Attributes, const TensorType&);
  friend void refuse(const Tensor&, std::string_view, std::span<const Tensor>, const std::string&);
  friend detail::CarryAndSlices<Tensor> record_with(const detail::Recorder&,
                                                    const detail::FlatBody<Tensor>&,
                                                    const detail::CarryAndSlices<Tensor>&);
  friend std::vector<Tensor> record_cond(const Tensor&, const detail::FlatBranch<Tensor>&,
                                         const detail::FlatBranch<Tensor>&);
  friend void mark_sharding(Tensor&, const Mesh&, const PartitionSpec&);
  friend void mark_sharding(Tensor&, const PartitionSpec&);
  friend void clear_sharding(Tensor&);
  friend Tensor enable_manual_sharding(const Tensor&, const PartitionSpec&);
  friend Tensor disable_manual_sharding(const Tensor&, const PartitionSpec&, const Shape&);
  friend std::vector<Tensor> grad(const Tensor&, std::span<const Tensor>);
  friend std::shared_ptr<GraphBuilder> graph_of(const Tensor&);
  friend void keep_named(const Tensor&, std::string_view);
  struct State;
  explicit Tensor(std::shared_ptr<State> state) : state_(std::move(state)) {}
  const std::shared_ptr<State>& state() const;
  double scalar_as_double() const;
  std::span<const std::byte> scalar() const;
  State& settable(const TensorType& found) const;

  std::shared_ptr<State> state_;
};

std::ostream& operator<<(std::ostream&, const Tensor&) = delete;  // x.to_vector<float>(), x.shape()

/// As Tracer::tensor(), on the tracer of another tensor.
Tensor tensor_beside(const Tensor& context, const TensorType& type, std::span<const std::byte> data,
                     std::string_view label, MemoryKind kind);

/// Records an operation; see ops/functions.h.
Tensor append(const Tensor& context, Op op, std::span<const Tensor> operands,
              Attributes attributes = {}, const TensorType& wanted = {});

/// For scan(), vmap(), pipeline() and cond() (ops/control.h).
detail::CarryAndSlices<Tensor> record_with(const detail::Recorder& recorder,
                                           const detail::FlatBody<Tensor>& body,
                                           const detail::CarryAndSlices<Tensor>& given);

std::vector<Tensor> record_cond(const Tensor& predicate, const detail::FlatBranch<Tensor>& if_true,
                                const detail::FlatBranch<Tensor>& if_false);

/// Marks how a tensor is to be cut: a parameter, an input, an intermediate value or a gradient. All
/// marks of a program are on one mesh. Throws invalid_argument if the tensor already has another
/// mark (see clear_sharding), or the program has another mesh; errors of the spec's own check pass
/// through.
void mark_sharding(Tensor& tensor, const Mesh& mesh, const PartitionSpec& spec);

/// On the tracer's mesh, or the default mesh if the tracer has none yet.
void mark_sharding(Tensor& tensor, const PartitionSpec& spec);
void mark_sharding(  // one tensor a call
    std::initializer_list<Tensor>, const Mesh&, const PartitionSpec&) = delete;
void shard(const Tensor&, const auto&...) = delete;  // mark_sharding(x, mesh, spec)
void with_sharding_constraint(                       // mark_sharding(x, mesh, spec)
    const Tensor&, const auto&...) = delete;

/// The mesh that a program has set as its default, if any: PyTorch/XLA's set_global_mesh() and
/// get_global_mesh(). A tracer without a mesh takes it, in mark_sharding() without a mesh and in
/// the first step; nothing else in Shardwise reads it. Thread-safe.
std::optional<Mesh> default_mesh();

/// Replaces the default mesh; without a value, removes it.
void set_default_mesh(std::optional<Mesh> mesh);

/// Takes the mark away.
void clear_sharding(Tensor& tensor);

/// Manual regions (the seed's enable_manual_sharding and disable_manual_sharding, JAX's shard_map):
/// a tensor as each device's own shard, cut as `spec`. Each device's operations work on its own
/// shard, until disable_manual_sharding() turns the shards back into a tensor of `shape`, cut as
/// `spec`. Shards that the spec gives to several devices must then be equal. all_reduce() combines
/// the shards of the devices that differ only along the axes.
///
/// The tracer must have its mesh already; dims must divide evenly. Throws invalid_argument if one
/// does not, for a tensor that is already in a region or in none, and as mark_sharding().
Tensor enable_manual_sharding(const Tensor& tensor, const PartitionSpec& spec);
Tensor disable_manual_sharding(const Tensor& tensor, const PartitionSpec& spec, const Shape& shape);
Tensor all_reduce(const Tensor& tensor, std::span<const std::string> axes, Reduction reduction);

/// The gradient of a scalar with respect to each of some tensors; see autodiff.h. They may be
/// marked like all tensors.
std::vector<Tensor> grad(const Tensor& loss, std::span<const Tensor> wrt);
inline std::vector<Tensor> grad(const Tensor& loss, std::initializer_list<Tensor> wrt) {
  return grad(loss, std::span<const Tensor>(wrt.begin(), wrt.size()));
}
std::map<std::string, Tensor> grad(const Tensor& loss, const std::map<std::string, Tensor>& wrt);
Tensor grad(const Tensor& loss, const Tensor& wrt);

/// For checkpoint() and checkpoint_name() (autodiff.h).
std::shared_ptr<GraphBuilder> graph_of(const Tensor& tensor);
void keep_named(const Tensor& tensor, std::string_view name);

// Other names that people try; each comment has the code to write.
void sigmoid(const TensorLike auto&, const auto&...) = delete;         // logistic(x)
void maximum(const TensorLike auto&, const auto&...) = delete;         // max(x, y)
void minimum(const TensorLike auto&, const auto&...) = delete;         // min(x, y)
void power(const TensorLike auto&, const auto&...) = delete;           // pow(x, y)
void square(const TensorLike auto&, const auto&...) = delete;          // x * x
void astype(const TensorLike auto&, const auto&...) = delete;          // convert(x, DType::f32)
void cast(const TensorLike auto&, const auto&...) = delete;            // convert(x, DType::f32)
void detach(const TensorLike auto&, const auto&...) = delete;          // stop_gradient(x)
void zeros_like(const TensorLike auto&, const auto&...) = delete;      // full_like(x, 0)
void ones_like(const TensorLike auto&, const auto&...) = delete;       // full_like(x, 1)
void permute(const TensorLike auto&, const auto&...) = delete;         // transpose(x, {1, 0})
void swapaxes(const TensorLike auto&, const auto&...) = delete;        // transpose(x, 0, 1)
void flatten(const TensorLike auto&, const auto&...) = delete;         // reshape(x, {-1})
void unsqueeze(const TensorLike auto&, const auto&...) = delete;       // reshape(x, {1, 8, 4})
void expand_dims(const TensorLike auto&, const auto&...) = delete;     // reshape(x, {1, 8, 4})
void squeeze(const TensorLike auto&, const auto&...) = delete;         // reshape(x, {8, 4})
void mm(const TensorLike auto&, const auto&...) = delete;              // matmul(x, w)
void bmm(const TensorLike auto&, const auto&...) = delete;             // matmul(x, w)
void clip(const TensorLike auto&, const auto&...) = delete;            // min(max(x, low), high)
void embedding(const TensorLike auto&, const auto&...) = delete;       // take(table, ids, 0)
void gather(const TensorLike auto&, const auto&...) = delete;          // take_along(x, ids, dim)
void reduce_mean(const TensorLike auto&, const auto&...) = delete;     // mean(x, dim)
void value_and_grad(const TensorLike auto&, const auto&...) = delete;  // grad(loss, weights)
template <TensorLike T>
void where(const T&, Scalar, Scalar) = delete;  // one of the two is a tensor: full_like(x, 1)
template <TensorLike T>
void concat(std::initializer_list<T>, std::int64_t = 0) = delete;  // concatenate({x, y}, dim)
template <TensorLike T>
void concat(const std::vector<T>&, std::int64_t = 0) = delete;  // concatenate({x, y}, dim)
template <TensorLike T>
void cat(std::initializer_list<T>, std::int64_t = 0) = delete;  // concatenate({x, y}, dim)
template <TensorLike T>
void cat(const std::vector<T>&, std::int64_t = 0) = delete;  // concatenate({x, y}, dim)

}  // namespace shardwise
