#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/device.h"
#include "shardwise/runtime/program/local_function.h"
#include "shardwise/runtime/sharded_array.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise {

/// Manual mode (the seed's manual sharding, JAX's shard_map): a program written device by device on
/// local shards, with its collectives spelled out.
///
/// A region records the steps of a Program and run() executes them as one task graph: each device's
/// step starts when its own inputs are ready, each copy of a collective when its source is, and no
/// device waits at a barrier. Values are single-assignment; memory for each is taken from the
/// devices' arenas when its step is recorded, so a program that does not fit fails before anything
/// runs.
///
/// A value has a global shape and a spec over the region's mesh, which say each device's box. Along
/// axes that its spec does not use, devices may hold different contents under the same box (partial
/// sums, say); the collectives below turn those into equal ones. Reductions combine in mesh order,
/// all_reduce of more than 16 devices in runs of at most 16 neighbours and then run by run: same
/// bits on every run, with any number of workers.
///
/// Thread-compatible. Keeps references to `devices`, which must outlive it.
///
///   ManualRegion region(devices, mesh);                                  // data=4,model=2
///   auto x = region.input(batch);                                        // [256, 784]  data,-
///   auto w = region.input(weights);                                      // [784, 128]  -,model
///   auto h = region.map("x w", {x, w}, {{DType::f32, {256, 128}, {{"data"}, {"model"}}}},
///                       multiply)[0];
///   auto s = region.all_gather(h, "model", 1);
///   region.run();
///   ShardedArray result = region.output(s);
class ManualRegion {
 public:
  /// Names a value of this region.
  struct Value {
    std::int64_t id = -1;
  };

  /// A result of a step.
  struct Output {
    DType dtype;
    Shape shape;
    PartitionSpec spec;
  };

  using LocalFunction = shardwise::LocalFunction;

  ManualRegion(Devices& devices, Mesh mesh);
  ~ManualRegion();
  ManualRegion(const ManualRegion&) = delete;
  ManualRegion& operator=(const ManualRegion&) = delete;

  /// Shares the array's shards. Throws invalid_argument if its mesh is not the region's.
  Value input(const ShardedArray& array);

  /// Calls `function` once per device, for several devices at once. `name` labels memory and
  /// errors: an exception out of it reaches run()'s caller, with step and device in its message
  /// (see shardwise::run).
  std::vector<Value> map(std::string_view name, std::span<const Value> inputs,
                         std::span<const Output> outputs, LocalFunction function);
  std::vector<Value> map(std::string_view name, std::initializer_list<Value> inputs,
                         std::initializer_list<Output> outputs, LocalFunction function) {
    return map(name, std::span<const Value>(inputs.begin(), inputs.size()),
               std::span<const Output>(outputs.begin(), outputs.size()), std::move(function));
  }

  /// In each group of devices that differ only along `axes`: every device gets the elementwise
  /// combination. Throws invalid_argument if the value's spec uses one of the axes (the boxes would
  /// differ), no_such_name for an unknown axis.
  Value all_reduce(Value value, std::span<const std::string> axes, Reduction reduction);
  Value all_reduce(Value value, std::initializer_list<std::string> axes, Reduction reduction) {
    return all_reduce(value, std::span<const std::string>(axes.begin(), axes.size()), reduction);
  }

  /// `axis` must be the last axis of dim `dim` in the spec, and is removed from it: each device
  /// gets the shards of its group joined along `dim`. (If several axes cut the dim and do not
  /// divide it, the larger blocks begin elsewhere; then some elements come from the neighbouring
  /// group.) Throws invalid_argument.
  Value all_gather(Value value, std::string_view axis, std::size_t dim);

  /// `axis`, unused by the spec, becomes the last axis of dim `dim`: each device gets its part of
  /// the group's combination. Throws invalid_argument.
  Value reduce_scatter(Value value, std::string_view axis, std::size_t dim, Reduction reduction);

  /// Moves `axis` from the end of dim `concat_dim` to the end of dim `split_dim`. Throws
  /// invalid_argument.
  Value all_to_all(Value value, std::string_view axis, std::size_t split_dim,
                   std::size_t concat_dim);

  /// Device i along `axis` sends its shard to device targets[i] of its group; a device that
  /// receives nothing gets zeros (as JAX's ppermute). Throws invalid_argument if `targets` does not
  /// have one entry per device along the axis (-1: sends nowhere), a target comes twice, or a
  /// sender's and its receiver's shards differ in shape.
  Value permute(Value value, std::string_view axis, std::span<const std::int64_t> targets);

  /// Runs everything recorded since the last run. Errors of the steps pass through; after one, the
  /// region holds no values any more.
  void run();

  /// A finished value as an array. The caller makes sure that replicas along unused axes are equal.
  /// Throws invalid_argument if the value has not been run.
  ShardedArray output(Value value) const;

  /// Drops the region's hold on all values, so that their memory is free again once no array shares
  /// it, and forgets steps that were recorded but not run.
  void clear();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardwise
