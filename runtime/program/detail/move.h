#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shardwise/runtime/program/detail/layout.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/plan/transfer_plan.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// The devices among which one transfer of a move takes place.
struct MoveGroup {
  TransferPlan plan;
  std::vector<std::int64_t> sources;  ///< mesh position of each source of the plan, old value
  std::vector<std::int64_t> targets;  ///< mesh position of each target of the plan, new value
};

/// Transfers that do not touch the same target.
struct MovePhase {
  /// The shards that a phase reads: the old value's, or the new value's after the earlier phases.
  enum class Source { old_value, new_value };

  /// The boxes of the plans count elements of the whole tensor or, if whole shards change place,
  /// the elements of one shard in row-major order.
  enum class Frame { tensor, shard };

  Source source = Source::old_value;
  Frame frame = Frame::tensor;
  std::vector<MoveGroup> groups;
};

/// Bytes that one device sends to others and receives from others.
struct DeviceBytes {
  DeviceId device = 0;
  std::size_t sent = 0, received = 0;

  bool operator==(const DeviceBytes&) const = default;
};

/// Turns the shards of one value into those of another: a collective or a redistribution. It knows
/// no memory. Immutable once made.
struct MovePlan {
  /// Each target of a phase waits for its own sources only, not for the whole phase before.
  std::vector<MovePhase> phases;

  /// Devices that send or receive, ascending.
  std::vector<DeviceBytes> traffic;

  /// Same phases, and in each the same sources and targets: one task can carry out both plans.
  bool same_targets(const MovePlan& other) const;
};

/// The one implementation of all_reduce, all_gather, reduce_scatter and all_to_all. In each group
/// of devices that differ only along the mesh axes `axes` (by number), every device gets its box
/// under `to`, taken from the boxes of the group under `from`, which cover it. With a reduction all
/// boxes of the group that hold an element are combined, in mesh order. If `from` and `to` place
/// alike, that takes two phases: each device combines one part, and all copy the parts. Both
/// shardings are of the same mesh.
///
/// Such a group of more than 16 devices goes level by level. On the first level, runs of at most 16
/// neighbours in mesh order combine. On the next level, the devices with the same place in their
/// runs combine the runs' results in mesh order, again at most 16 together, and so on. The results
/// are copied back on the same way. The result of a level is rounded to the dtype. Let s be the
/// sum, over the levels, of the number of devices that combine together: then there are 2 s copies
/// for each device. A prime factor above 16 of the number of devices is a level.
///
/// Throws invalid_argument if a target's element is in no box of its group, naming both, and if the
/// shardings do not fit the shape; unsupported for a reduction of a dtype that kernels cannot
/// compute with.
///
///   // all_gather over "model" of a value of [256, 128], cut data,model
///   plan_move(Sharding(mesh, {{"data"}, {"model"}}), Sharding(mesh, {{"data"}, {}}), {256, 128},
///             DType::f32, axes, Reduction::none);
MovePlan plan_move(const Sharding& from, const Sharding& to, const Shape& shape, DType dtype,
                   std::span<const std::size_t> axes, Reduction reduction);

/// From any sharding to any other, over all devices of both. Their meshes may differ. Each element
/// comes from the nearest replica. Throws as TransferPlan::reshard().
MovePlan plan_redistribution(const Sharding& from, const Sharding& to, const Shape& shape,
                             DType dtype);

/// The same for layouts of one mesh. The boxes of `from` contain all elements of the boxes of `to`.
MovePlan plan_redistribution(const Layout& from, const Layout& to, const Shape& shape, DType dtype);

/// The most bytes that a device then receives, computed in less time than the plan.
std::size_t most_received(const Layout& from, const Layout& to, const Shape& shape, DType dtype);

/// Device i along mesh axis `axis` sends its shard unchanged to device targets[i] of its group; -1:
/// to none. Throws invalid_argument if `targets` does not have one entry for each device along the
/// axis, a target repeats, or a sender's and its receiver's shards differ in shape.
MovePlan plan_permute(const Sharding& sharding, const Shape& shape, DType dtype, std::size_t axis,
                      std::span<const std::int64_t> targets);

/// The mesh positions that agree along all axes but these, by number; ascending in each group.
std::vector<std::vector<std::int64_t>> position_groups(const Mesh& mesh,
                                                       std::span<const std::size_t> axes);

}  // namespace shardwise
