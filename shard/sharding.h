#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/mesh.h"
#include "shardwise/shard/partition_spec.h"
#include "shardwise/shard/uneven_policy.h"

namespace shardwise {

/// One distinct box of a sharded tensor and the devices that hold it.
struct DistinctPiece {
  Box box;
  std::vector<std::int64_t> positions;  ///< mesh positions that hold it, ascending; never empty
};

/// One tile of a dim and the indices [begin, end) that it covers.
struct TileRange {
  std::int64_t tile;
  std::int64_t begin, end;
};

/// The box of a tensor that each device of a mesh holds.
///
/// A dim is cut over the axes of its entry in the spec, merged major first. An UnevenPolicy says
/// how a dim is cut that does not divide evenly. The default is ceil: tile i of k owns [min(i*b,
/// S), min((i+1)*b, S)) with b = ceil(S / k), so the last tiles may be short or empty, and nothing
/// is padded. Devices that differ only along axes (or parts of axes) that the spec does not use
/// hold the same box: they are replicas. (Source: XLA's HloSharding; the rule is GSPMD's, arXiv
/// 2105.04663.)
///
/// Immutable, cheap to copy, thread-safe. Queries for one device take O(rank) and allocate nothing.
///
///   const Sharding sharding(Mesh::parse("data=4,model=2"), PartitionSpec::parse("data,model"));
///   sharding.box(5, {10, 6});           // [6:9, 3:6]
///   sharding.shard_shape({10, 6});      // [3, 3]
class Sharding {
 public:
  /// Throws no_such_name for an unknown axis (listing the mesh's axes), invalid_argument if an
  /// axis, or a part of one, is used twice or does not divide its axis, if the policy does not have
  /// one tile size per tile, or if the spec has more than kMaxRank dims.
  Sharding(Mesh mesh, PartitionSpec spec, UnevenPolicy policy = UnevenPolicy());

  Sharding() = delete;  // of what rank? Sharding::replicated(Mesh::line(1), rank) cuts nothing

  /// Every device of the mesh holds all of a tensor of this rank.
  static Sharding replicated(Mesh mesh, std::size_t rank);

  const Mesh& mesh() const;
  const PartitionSpec& spec() const;
  const UnevenPolicy& policy() const;
  std::size_t rank() const { return spec().rank(); }

  /// The number of tiles that dim number `dim` is cut into; 1 if it is whole.
  std::int64_t tiles(std::size_t dim) const;

  /// The tile of the dim at a mesh position: 0 <= tile < tiles(dim).
  std::int64_t tile_index(std::int64_t position, std::size_t dim) const;

  /// The indices of a dim of this extent that a tile covers. Requires 0 <= tile < tiles(dim) and
  /// extent >= 0.
  TileRange tile_range(std::size_t dim, std::int64_t tile, std::int64_t extent) const;

  /// The tile that holds an element of a dim. Requires 0 <= element < extent.
  std::int64_t tile_of(std::size_t dim, std::int64_t element, std::int64_t extent) const;

  /// The mesh position that holds the tiles `tile`, one per dim, as its replica number `replica`.
  /// Inverse of tile_index() and replica_id(). Requires all in range.
  std::int64_t position_of(const Index& tile, std::int64_t replica) const;

  /// The shape of the largest shard, ceil(S / k) per dim under the default policy: every shard is
  /// padded to it if all must have one shape. Throws invalid_argument if the shape's rank is not
  /// rank() or the policy does not allow the shape; the message names the dim, its axes, ways and
  /// extent.
  Shape shard_shape(const Shape& shape) const;

  /// The box at a mesh position, or on a device. Throws as shard_shape(); box() throws not_found if
  /// the device is not in the mesh.
  Box box_at(std::int64_t position, const Shape& shape) const;
  Box box(DeviceId device, const Shape& shape) const;

  /// The number of devices that hold each box.
  std::int64_t num_replicas() const;

  /// The number of the replica at a position: counted over the unused axes in mesh order, as JAX
  /// counts if boxes differ. 0 <= replica_id < num_replicas().
  std::int64_t replica_id(std::int64_t position) const;

  /// True if no dim is cut into more than one tile.
  bool is_fully_replicated() const;

  /// The non-empty distinct boxes, in row-major order of tiles; together they cover every element
  /// exactly once. O(devices).
  std::vector<DistinctPiece> distinct_pieces(const Shape& shape) const;

  /// "data,model on data=4,model=2", and the policy if it is not ceil.
  std::string to_string() const;

  /// True if the placement is the same: each device holds the same box for every shape, whatever
  /// the spelling. O(rank), but O(devices) if the meshes list their devices in different orders or
  /// number them by patterns with no common factors.
  bool operator==(const Sharding& other) const;

 private:
  struct Data;
  friend class ShardBoxes;
  std::shared_ptr<const Data> data_;
};

/// Sharding::to_string().
std::ostream& operator<<(std::ostream& out, const Sharding& sharding);

}  // namespace shardwise

/// Equal shardings have equal hashes. O(rank): looks at eight devices.
template <>
struct std::hash<shardwise::Sharding> {
  std::size_t operator()(const shardwise::Sharding& sharding) const noexcept;
};
