#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// The share of a dim that one process has: its index among the distinct shares, ordered by their
/// first tile, and the number of shares. Processes that hold the same tiles have the same index.
struct ProcessShare {
  std::int64_t index, count;

  bool operator==(const ProcessShare&) const = default;
};

/// The part of a sharded tensor that each process of a job holds. Every device belongs to one
/// process.
///
/// A process's *local array* (JAX: process-local data) has per dim the rows of all tiles that its
/// devices hold along that dim, one after the other, even if they are not adjacent in the tensor.
/// Processes are *uniform* along a dim if any two hold the same tiles of it or no common tile, and
/// all hold equally many; only then do local extents determine the global extent.
///
/// On an abstract mesh, the mesh position stands for the device.
///
/// Immutable, thread-safe. O(devices * rank) to make.
///
///   const ProcessView view(sharding, [](DeviceId device) { return device / 4; });
///   view.share(1, 0);                   // {1, 4}: the second of four shares of dim 0
class ProcessView {
 public:
  /// `process_of` is asked once for each device.
  ProcessView(Sharding sharding, const std::function<std::int64_t(DeviceId)>& process_of);

  /// Device d belongs to process_of[d]. Throws not_found if a device of the mesh is not listed.
  ProcessView(Sharding sharding, std::span<const std::int64_t> process_of);

  const Sharding& sharding() const { return sharding_; }

  /// The processes that have devices in the mesh, ascending.
  std::span<const std::int64_t> processes() const { return processes_; }

  /// The mesh positions of a process's devices, ascending; valid as long as this view. Throws
  /// not_found if it has none.
  std::span<const std::int64_t> positions(std::int64_t process) const;

  /// Requires dim < the sharding's rank.
  bool is_uniform(std::size_t dim) const;

  /// Throws not_found as positions(); invalid_argument if processes are not uniform along the dim,
  /// naming two that differ. Requires dim < the sharding's rank.
  ProcessShare share(std::int64_t process, std::size_t dim) const;

  /// The distinct tiles of a dim that a process holds, ascending. Throws as positions(). Requires
  /// dim < the sharding's rank.
  std::span<const std::int64_t> tiles(std::int64_t process, std::size_t dim) const;

  /// The shape of a process's local array. Throws as positions() and Sharding::shard_shape().
  Shape local_shape(std::int64_t process, const Shape& global) const;

  /// The shape of the tensor if every process's local array has this shape: per dim, local * share
  /// count. Throws invalid_argument if processes are not uniform along a dim, or if the policy
  /// would then give a process more or less.
  Shape global_shape(const Shape& local) const;

  /// The box of a position within its process's local array; of the same shape as
  /// Sharding::box_at(). Throws as Sharding::shard_shape(). Requires a position in range.
  Box local_box(std::int64_t position, const Shape& global) const;

 private:
  /// How the tiles of one dim are divided among the processes.
  struct DimView {
    std::vector<std::vector<std::int64_t>> sets;  // the distinct tile sets, by their first tile
    std::vector<std::size_t> set_of;              // per process
    /// Two processes that are not uniform, by number in processes().
    std::optional<std::pair<std::size_t, std::size_t>> conflict;
  };

  static DimView view_of(std::vector<std::vector<std::int64_t>> tiles_of);
  std::size_t number_of(std::int64_t process) const;
  void check_uniform(const char* operation, std::size_t dim) const;

  Sharding sharding_;
  std::vector<std::int64_t> processes_;
  std::vector<std::size_t> process_at_;               // per position, number in processes_
  std::vector<std::vector<std::int64_t>> positions_;  // per process
  std::vector<DimView> dims_;
};

/// The part of its process's minibatch that one device takes.
struct MinibatchPart {
  std::int64_t position;  ///< in the mesh
  Box local;              ///< in the process's minibatch
  Box global;             ///< the same elements in the global batch
};

struct Minibatch {
  Shape global_shape;
  ProcessShare share;                ///< the rows that the process must supply
  std::vector<MinibatchPart> parts;  ///< for each of the process's devices, in position order
};

/// How a process places a minibatch of its own: rows along dim 0, all of every other dim. The
/// process supplies the rows of its share; processes with the same share supply the same rows. Row
/// r of the minibatch is row r of the tiles that its devices hold, in order of tiles: each device
/// gets what its sharding says, whatever the device order.
///
/// Throws not_found if the process has no devices; invalid_argument for a scalar, if dim 0 is not
/// cut evenly over processes, or if the rows cannot be divided so that every process holds as many
/// as it supplies.
Minibatch minibatch(const ProcessView& view, std::int64_t process, const Shape& local);

}  // namespace shardwise
