#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/mesh.h"
#include "shardwise/shard/partition_spec.h"

namespace shardwise {

/// One distinct box of a sharded tensor and the devices that hold it.
struct DistinctPiece {
  Box box;
  std::vector<std::int64_t> positions;  ///< mesh positions that hold it, ascending; never empty
};

/// Which box of a tensor each device of a mesh holds.
///
/// A dim of size S that is cut k ways has blocks of b = ceil(S / k): tile i owns
/// [min(i*b, S), min((i+1)*b, S)), so the last tiles may be short or empty, and nothing is padded.
/// The axes of one dim are merged, major first, before dividing. Devices that differ only along
/// axes that the spec does not use hold the same box: they are replicas.
/// (Source: XLA's HloSharding; the rule is GSPMD's, arXiv 2105.04663.)
///
/// Immutable, cheap to copy, thread-safe. Queries for one device take O(rank) and allocate nothing.
///
///   const Sharding sharding(Mesh::parse("data=4,model=2"), PartitionSpec::parse("data,model"));
///   sharding.box(5, {10, 6});           // [6:9, 3:6]
///   sharding.shard_shape({10, 6});      // [3, 3]
class Sharding {
 public:
  /// Throws not_found for an unknown axis (listing the axes there are), invalid_argument where an
  /// axis is used twice or the spec has more than kMaxRank dims.
  Sharding(Mesh mesh, PartitionSpec spec);

  /// Every device of the mesh holds all of a tensor of this rank.
  static Sharding replicated(Mesh mesh, std::size_t rank);

  const Mesh& mesh() const;
  const PartitionSpec& spec() const;
  std::size_t rank() const;

  /// Into how many tiles dim number `dim` is cut; 1 where it is whole.
  std::int64_t tiles(std::size_t dim) const;

  /// Which tile of the dim lies at a mesh position: 0 <= tile < tiles(dim).
  std::int64_t tile_index(std::int64_t position, std::size_t dim) const;

  /// The block size per dim, ceil(S / k): what the first device holds. Throws invalid_argument
  /// where the shape's rank is not rank().
  Shape shard_shape(const Shape& shape) const;

  /// The box that lies at a mesh position, or on a device. Throws invalid_argument where the
  /// shape's rank is not rank(); box() throws not_found where the device is not in the mesh.
  Box box_at(std::int64_t position, const Shape& shape) const;
  Box box(DeviceId device, const Shape& shape) const;

  /// How many devices hold each box.
  std::int64_t num_replicas() const;

  /// Which of them lies at a position: counted over the unused axes in mesh order, as JAX counts
  /// where boxes differ. 0 <= replica_id < num_replicas().
  std::int64_t replica_id(std::int64_t position) const;

  /// The same, counted by device id, as XLA does after normalising. O(num_replicas()) where the
  /// mesh has a device order of its own.
  std::int64_t xla_replica_id(std::int64_t position) const;

  /// No dim is cut into more than one tile.
  bool is_fully_replicated() const;

  /// The non-empty distinct boxes, in row-major order of tiles; together they cover every element
  /// exactly once. O(devices).
  std::vector<DistinctPiece> distinct_pieces(const Shape& shape) const;

  /// "data,model on data=4,model=2"
  std::string to_string() const;

  /// Same placement: the same device holds the same box for every shape, whatever the spelling.
  /// O(devices) where device orders differ, else O(rank).
  bool operator==(const Sharding& other) const;

 private:
  struct Data;
  std::shared_ptr<const Data> data_;
};

}  // namespace shardwise
