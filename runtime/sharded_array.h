#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/detail/array_guesses.h"
#include "shardwise/runtime/device.h"
#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// The type of an array: element type, global shape, and the box on each device.
///
///   const ArraySpec whole{DType::f32, {12, 4}};
///   whole.sharding.to_string();                  // "-,- on devices=1"
struct ArraySpec {
  DType dtype = DType::f32;
  Shape shape = {};
  Sharding sharding = Sharding::replicated(Mesh::line(1), shape.size());  ///< all on device 0
};

/// A tensor cut over devices: one buffer per position of the sharding's mesh, each holding exactly
/// the device's box, row-major, native endian, without padding. If the devices are spread over
/// processes, each process holds the shards of its own devices: the *addressable* ones.
///
/// Immutable: nothing writes to it once it is made, and copies share the buffers, so a copy is a
/// snapshot. Keeps its Devices' memory alive, but not the Devices object, which must outlive every
/// call that takes it. Thread-safe.
///
///   Devices devices(8);
///   const Sharding rows(Mesh::parse("data=4,model=2"), PartitionSpec::parse("data,-"));
///   auto x = ShardedArray::from_host(devices, {DType::f32, {10, 3}, rows}, values);
///   auto y = x.redistribute(devices, Sharding(rows.mesh(), PartitionSpec::parse("-,model")));
class ShardedArray : public first_guesses::OfArray {
 public:
  /// Cuts `data`, the whole array row-major, which every process gives. Throws invalid_argument if
  /// its size is not the array's, not_found if a device of the mesh is not among `devices`,
  /// resource_exhausted.
  static ShardedArray from_host(Devices& devices, const ArraySpec& spec,
                                std::span<const std::byte> data, std::string_view label = "array",
                                MemoryKind kind = MemoryKind::array);

  /// The same for a vector, array or span of elements. Throws invalid_argument if they are not of
  /// the spec's dtype.
  template <ElementValues R>
  static ShardedArray from_host(Devices& devices, const ArraySpec& spec, const R& values,
                                std::string_view label = "array",
                                MemoryKind kind = MemoryKind::array) {
    check_dtype("make an array from host memory", dtype_of_elements<const R&>(), spec.dtype);
    return from_host(devices, spec, std::as_bytes(std::span(values)), label, kind);
  }

  /// Calls fill(view) once for each distinct box of this process, in parallel; it writes all of
  /// view.data, and computes but does not wait, like all bodies of an Executor. Replicas are copied
  /// from there. Throws as above; errors of fill pass through.
  static ShardedArray from_callback(Devices& devices, const ArraySpec& spec,
                                    const std::function<void(const BoxView&)>& fill,
                                    std::string_view label = "array");

  /// Takes one buffer per mesh position, each exactly its box's bytes and on its device. Throws
  /// invalid_argument naming the position at fault. The caller must not write to them any more.
  static ShardedArray from_shards(const ArraySpec& spec,
                                  std::vector<std::shared_ptr<Buffer>> shards);

  /// The same, with null for positions on another process's devices.
  static ShardedArray from_shards(const Devices& devices, const ArraySpec& spec,
                                  std::vector<std::shared_ptr<Buffer>> shards);

  const ArraySpec& spec() const { return data_->spec; }
  DType dtype() const { return data_->spec.dtype; }
  const Shape& shape() const { return data_->spec.shape; }
  const Sharding& sharding() const { return data_->spec.sharding; }

  /// True if the shard at a mesh position is this process's. Requires
  /// 0 <= position < sharding().mesh().size().
  bool is_addressable(std::int64_t position) const {
    return data_->shards[static_cast<std::size_t>(position)] != nullptr;
  }

  /// The shard at a mesh position. Valid as long as this array or a copy of it. Requires
  /// 0 <= position < sharding().mesh().size(). Throws invalid_argument if it is not addressable.
  ConstBoxView shard(std::int64_t position) const;

  /// The buffer itself, to share without copying; null if it is not addressable.
  std::shared_ptr<const Buffer> buffer(std::int64_t position) const;

  /// True if nobody else holds the array or one of its shards.
  bool is_held_alone() const;

  /// If nothing else holds the array or one of its shards: the shards themselves, to overwrite; the
  /// array is then used up. Else absent, and the array stays.
  std::optional<std::vector<std::shared_ptr<Buffer>>> release() &&;

  /// The addressable shards, by mesh position, each as from shard().
  std::vector<ConstBoxView> shards() const;

  /// The whole array, row-major: its bytes. Throws as read does.
  std::vector<std::byte> to_host() const;

  /// The same as elements. Throws invalid_argument if T is not the array's dtype.
  template <TensorElement T>
  std::vector<T> to_vector() const {
    check_dtype("read an array", dtype(), dtype_of<T>());
    return filled_vector<T>(as_size(num_elements(shape())),
                            [&](std::span<std::byte> out) { read(Box::whole(shape()), out); });
  }
  template <TensorElement T>
  std::vector<T> to_host() const {
    return to_vector<T>();
  }

  /// Fills `out` with the elements of `box`, row-major, from the shards that hold them. Takes time
  /// only for those shards, however many others there are. Throws invalid_argument if box leaves
  /// the array, out is not exactly its size, or a part of it is only in other processes:
  /// redistribute first.
  void read(const Box& box, std::span<std::byte> out) const;

  /// The address of the elements of `box`, if one addressable shard holds them row-major side by
  /// side; else null. Valid as long as this array or a copy of it. Throws as read does.
  const std::byte* contiguous(const Box& box) const;

  /// The same values under another sharding, by a transfer plan; the traffic is counted on the
  /// devices. Devices that already hold exactly their new box share the buffer. With several
  /// processes all call it, and each derives which boxes it sends and which it gets. Throws as
  /// from_host does, and cancelled if another process fails or does not come.
  ShardedArray redistribute(Devices& devices, const Sharding& to,
                            std::string_view label = "array") const;

 private:
  static ShardedArray make(const ArraySpec& spec, std::vector<std::shared_ptr<Buffer>> shards,
                           const std::function<bool(DeviceId)>& is_addressable);

  /// A position of this process that holds a tile; -1 if none does.
  std::int64_t addressable_position(const Index& tile) const;

  struct Data {
    ArraySpec spec;
    std::vector<std::shared_ptr<Buffer>> shards;
  };
  explicit ShardedArray(std::shared_ptr<const Data> data) : data_(std::move(data)) {}

  std::shared_ptr<const Data> data_;
};

void reshard(const ShardedArray&, const auto&...) = delete;  // w.redistribute(devices, sharding)
std::ostream& operator<<(std::ostream&, const ShardedArray&) = delete;  // to_vector<float>()
std::string to_string(const ShardedArray&) = delete;  // to_vector<float>(), to_string(shape())

}  // namespace shardwise
