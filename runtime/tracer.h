#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "shardwise/runtime/detail/tracer_guesses.h"
#include "shardwise/runtime/device.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/runtime/tensor.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"

namespace shardwise {

struct TracerOptions {
  /// The mesh that the program runs on; else the mesh of the first mark, else the default mesh,
  /// else one device.
  std::optional<Mesh> mesh = {};

  /// See PartitionOptions.
  bool keep_gathered_weights = false;

  /// See fuse.h: finds where a NaN comes from; slow.
  NanCheck nan_check = NanCheck::off;

  /// The number of executables that are kept, at least 1: those used last.
  std::size_t executables = 64;
};

/// How often a tracer made an executable, and how often it already had one.
struct TracerCounters {
  std::int64_t traces = 0;   ///< steps run
  std::int64_t hits = 0;     ///< of them, with a known executable
  std::int64_t kept = 0;     ///< executables in the cache now
  std::int64_t dropped = 0;  ///< to make room for others
};

/// Seconds of the last step.
struct StepSeconds {
  double trace = 0;    ///< from the first operation recorded to mark_step()
  double compile = 0;  ///< propagate, partition, plan; the look-up if it was known
  double run = 0;      ///< with the upload of tensors from the host
};

/// Traced mode: tensors record operations, and mark_step() runs them on all devices of the mesh.
/// The first step of its kind is propagated, partitioned and planned; the same operations on the
/// same shapes and marks find their executable again.
///
/// Weights and optimizer state that the program has replaced (`w = w - ...`) give their memory to
/// the tensors that replace them, if nothing else holds them. If the step fails, these tensors get
/// the old values, so another step can use the state; except values that the failing step had begun
/// to write over.
///
/// Thread-compatible. Keeps a reference to `devices`, which must outlive it and its tensors.
///
///   Devices devices(8);
///   Tracer tracer(devices, {.mesh = Mesh::parse("data=8")});
///   Tensor w = tracer.tensor<float>({784, 10}, weights, "w", MemoryKind::parameter);
///   Tensor x = tracer.tensor<float>({64, 784}, pixels, "x", MemoryKind::loader);
///   mark_sharding(x, {"data", {}});
///   Tensor loss = sum(einsum("bi,io->bo", x, w));
///   w -= grad(loss, w) * 0.1;
///   tracer.mark_step();
///   loss.item();
class Tracer : public first_guesses::OfTracer {
 public:
  explicit Tracer(Devices& devices, TracerOptions options = {});
  Tracer(Devices&, const std::same_as<Mesh> auto&) = delete;  // Tracer(devices, {.mesh = mesh})
  ~Tracer();
  Tracer(const Tracer&) = delete;
  Tracer& operator=(const Tracer&) = delete;

  /// A tensor with a value: row-major on the host, where it waits until a step needs it and
  /// determines its cut; or on the devices already. The kind is more than accounting: only a
  /// parameter or optimizer state gives its memory to its replacement, and the weights of a step
  /// are gathered again for its backward pass only if they are parameters. Throws invalid_argument
  /// if the bytes are not the tensor's.
  Tensor tensor(const TensorType& type, std::span<const std::byte> data,
                std::string_view label = "", MemoryKind kind = MemoryKind::array);
  /// The same for a vector, array or span of elements, which is copied. Throws invalid_argument if
  /// they are not of the type's dtype. If only a shape is given, the dtype is theirs.
  template <ElementValues R>
  Tensor tensor(const TensorType& type, const R& values, std::string_view label = "",
                MemoryKind kind = MemoryKind::array) {
    check_dtype("make tensor \"" + std::string(label) + '"', dtype_of_elements<const R&>(),
                type.dtype);
    return tensor(type, std::as_bytes(std::span(values)), label, kind);
  }
  template <ElementValues R>
  Tensor tensor(const Shape& shape, const R& values, std::string_view label = "",
                MemoryKind kind = MemoryKind::array) {
    return tensor(TensorType{dtype_of_elements<const R&>(), shape}, values, label, kind);
  }
  template <TensorElement T>
  Tensor tensor(const Shape& shape, std::type_identity_t<std::span<const T>> values,
                std::string_view label = "", MemoryKind kind = MemoryKind::array) {
    return tensor(TensorType{dtype_of<T>(), shape}, std::as_bytes(values), label, kind);
  }
  template <TensorElement T>
  Tensor tensor(const Shape& shape, std::initializer_list<T> values, std::string_view label = "",
                MemoryKind kind = MemoryKind::array) {
    return tensor<T>(shape, std::span<const T>(values.begin(), values.size()), label, kind);
  }
  template <ElementValues R>
  Tensor tensor(const R&, const Shape&, std::string_view = "",  // tensor(shape, values, label)
                MemoryKind = MemoryKind::array) = delete;
  Tensor tensor(ShardedArray array, std::string_view label = "",
                MemoryKind kind = MemoryKind::array);

  /// A tensor of a type, without a value and without memory: for plan() (jax.ShapeDtypeStruct). A
  /// step that uses it cannot run. Throws as tensor().
  Tensor abstract_tensor(const TensorType& type, std::string_view label,
                         MemoryKind kind = MemoryKind::array);

  /// Compiles the step that mark_step() would run: memory and traffic of each device, to the byte,
  /// before anything exists. Nothing runs and no tensor moves. The recorded step is then forgotten:
  /// its tensors have no values, but tensors that were to replace weights are these weights, so
  /// that the same step can be recorded again. Errors of compiling pass through.
  ///
  ///   Tensor w = tracer.abstract_tensor({DType::f32, {50304, 4096}}, "w", MemoryKind::parameter);
  ///   w = w * 0.9;
  ///   tracer.plan()->memory(0).peak_bytes;
  std::shared_ptr<const Executable> plan();

  /// Runs the operations recorded since the last step. All tensors that were recorded and are still
  /// held get their values. Marked tensors on the host go to the devices, cut like their marks,
  /// even if no operation uses them. Errors of compiling and running pass through; then the
  /// recorded tensors have no value, except for replaced weights (see above).
  void mark_step();

  /// Errors, dumps and reports show operations recorded from now on as part of `name`, inside the
  /// open scopes. Ends with the guard; a step may end before.
  class Scope {
   public:
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    friend class Tracer;
    Scope(std::shared_ptr<struct TracerImpl> tracer, std::string before);
    std::shared_ptr<struct TracerImpl> tracer_;
    std::string before_;
  };
  [[nodiscard]] Scope scope(std::string_view name);

  TracerCounters counters() const;
  StepSeconds last_seconds() const;

  /// The executable of the last step that was run or planned; null before the first. Valid until
  /// the next mark_step().
  const Executable* last() const;

  /// The reason why the last compiled step was not known: "found %3 = .. : f32[32, 784], had %3 =
  /// .. : f32[64, 784]"; "" for the first. After many such steps in a row it names the usual cause.
  const std::string& last_miss() const;

 private:
  std::shared_ptr<struct TracerImpl> impl_;
};

}  // namespace shardwise
