#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/shard/plan/transfer_plan.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// One thing that is wrong with a spec on a mesh, or with a shape for it.
struct SpecProblem {
  enum class Kind {
    unknown_axis,  ///< the mesh has no such axis
    bad_part,      ///< the mesh has the axis, but not this part of it
    used_twice,    ///< the axis, or a part of it, is used already
    rank,          ///< the spec is for another rank
    uneven,        ///< the policy is strict, and the dim does not divide
    tile_sizes,    ///< the policy's sizes do not fit spec and shape
  };

  Kind kind;
  std::size_t dim = 0;  ///< of the spec; 0 for rank and tile_sizes
  std::vector<std::string>
      axes;  ///< those at fault, as the spec writes them; all of the dim's for uneven
  std::int64_t extent = 0;  ///< of the dim, for uneven
  std::int64_t ways = 0;    ///< number of tiles of the dim, for uneven
  std::string what;         ///< one line, for people

  /// Axes of the mesh, or parts of them, that could be used instead; the nearest by name first.
  std::vector<std::string> other_axes = {};
};

/// The problems of a spec, and valid alternatives.
///
/// Value type, thread-compatible.
struct SpecAdvice {
  std::vector<SpecProblem> problems;  ///< by dim; empty if the spec is valid
  std::vector<PartitionSpec> specs;   ///< valid ones near to it, the nearest first; at most 5
  std::vector<Shape> shapes;          ///< near the shape and valid for the spec as it is; at most 2

  /// Some lines of text.
  std::string to_string() const;
};

/// Looks for everything that is wrong with a spec: on a mesh and, if given, for a shape. Reports no
/// problem if and only if Sharding(mesh, spec, policy).shard_shape(shape) does not throw. If it
/// reports one, it names at least one valid spec, unless it is the policy's tile sizes that do not
/// fit. Throws invalid_argument if an extent is negative.
SpecAdvice advise(const Mesh& mesh, const PartitionSpec& spec, const std::optional<Shape>& shape,
                  const UnevenPolicy& policy = UnevenPolicy());

/// The work of one device if a tensor is resharded, in numbers of elements.
struct DeviceChange {
  struct Fetch {
    DeviceId from;
    std::int64_t elements;

    bool operator==(const Fetch&) const = default;
  };

  DeviceId device;
  std::int64_t kept;           ///< it has them and needs them
  std::int64_t fetched;        ///< it needs them from others
  std::int64_t dropped;        ///< it has them and does not need them
  std::vector<Fetch> fetches;  ///< elements from each other device, by device
};

/// The work of all devices if a tensor is resharded.
///
/// Value type, thread-compatible.
struct ReshardExplanation {
  TransferClass transfer;
  std::int64_t kept, fetched, dropped;  ///< over all devices
  bool same_placement;                  ///< the two shardings are equal
  std::vector<DeviceChange> devices;    ///< of either mesh, by device

  /// If false, the box that each device needs is inside the one that it has.
  bool needs_communication() const { return fetched > 0; }

  /// Some lines of text, with bytes; at most `most_devices` devices are listed.
  std::string to_string(std::size_t element_bytes, std::size_t most_devices = 32) const;
};

/// Follows the copies of TransferPlan::reshard(), and throws as it does.
ReshardExplanation explain_reshard(const Sharding& from, const Sharding& to, const Shape& shape);

}  // namespace shardwise
