#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/mesh.h"

namespace shardwise {

/// Indices [begin, end) of one dim.
struct IndexRun {
  std::int64_t begin, end;

  bool operator==(const IndexRun&) const = default;
};

/// Most runs of one dim that runs_at() returns.
inline constexpr std::size_t kMostRuns = std::size_t{1} << 20;

/// How the values of a partial tensor are combined into those of the tensor.
enum class PartialOp { sum, avg, product, max, min };

/// The effect of one mesh axis on a tensor.
///
/// Value type, thread-compatible.
struct Placement {
  enum class Kind { replicate, shard, strided_shard, partial };

  Kind kind = Kind::replicate;
  std::size_t dim = 0;            ///< the dim that shard and strided_shard cut
  std::int64_t split = 1;         ///< strided_shard: number of chunks made first, >= 1; else 1
  PartialOp op = PartialOp::sum;  ///< for partial

  static Placement replicate() { return {}; }
  static Placement shard(std::size_t dim) { return {.kind = Kind::shard, .dim = dim}; }
  static Placement strided_shard(std::size_t dim, std::int64_t split) {
    return {.kind = Kind::strided_shard, .dim = dim, .split = split};
  }
  static Placement partial(PartialOp op) { return {.kind = Kind::partial, .op = op}; }

  bool cuts() const { return kind == Kind::shard || kind == Kind::strided_shard; }

  /// "R", "S(0)", "StridedShard(0, split=2)", "P(sum)".
  std::string to_string() const;

  bool operator==(const Placement&) const = default;
};

/// The part of a tensor that each device holds, given per mesh axis, as in PyTorch's DTensor (a
/// Sharding gives it per tensor dim).
///
/// Axes are applied in mesh order. Each cuts the part that those before it left, by torch.chunk's
/// rule: blocks of ceil(length / size), the last ones short or empty. A strided shard first makes
/// `split` chunks and then cuts each of them; the device at i gets the i-th part of every chunk. So
/// it may hold several runs of indices, and a later axis may count as the major one: FSDP over
/// tensor parallelism writes split = size of the later axis. (Source: PyTorch 2.15,
/// torch.distributed.tensor.)
///
/// Invariant: one placement per mesh axis; strided shards split by 1 or more; all partial ops are
/// the same, except that sum and avg may go together, as in DTensor.
///
/// Immutable value type. Queries for one position take O(rank * mesh rank), whatever the extents
/// and split factors. They throw invalid_argument if the shape lacks a dim that is cut. Empty
/// pieces of a dim are at its end, as in DTensor.
///
///   const Placements placements = Placements::parse(Mesh::parse("2,2"), "S(0),S(0)");
///   placements.local_shape(1, {5, 8});             // [1, 8], where a Sharding has [2, 8]
///   placements.box_at(1, {5, 8});                  // [2:3, 0:8]
class Placements {
 public:
  /// Throws invalid_argument, naming the axis, if the invariant would not hold.
  Placements(Mesh mesh, std::vector<Placement> list);

  /// Reads one placement per axis, "S(0),R,P(sum)", in our notation or in DTensor's:
  /// "(Shard(dim=0), Replicate(), Partial(sum))", "_StridedShard(dim=0, split_factor=2)", "_S(0,
  /// 2)"; "P" is P(sum). Throws invalid_argument, naming the character; also for a negative dim,
  /// which DTensor counts from the tensor's last dim: write the dim itself.
  static Placements parse(Mesh mesh, std::string_view text);

  const Mesh& mesh() const { return mesh_; }

  /// Per mesh axis.
  const std::vector<Placement>& list() const { return list_; }

  /// True if the devices hold values that are still to be reduced.
  bool is_partial() const;

  /// The number of indices of each dim that a position holds.
  Shape local_shape(std::int64_t position, const Shape& shape) const;

  /// The box at a position; absent if it holds several runs of a dim.
  std::optional<Box> box_at(std::int64_t position, const Shape& shape) const;

  /// Per dim the indices that a position holds: ascending, with gaps between runs. Takes O(rank +
  /// runs * log extent) steps of O(mesh rank) each. Throws unsupported beyond kMostRuns of a dim.
  std::vector<std::vector<IndexRun>> runs_at(std::int64_t position, const Shape& shape) const;

  /// The first form that parse() reads.
  std::string to_string() const;

  /// True if mesh and placements are the same. Different placements may still place alike: see
  /// convert.h.
  bool operator==(const Placements&) const = default;

 private:
  void check(const Shape& shape) const;

  Mesh mesh_;
  std::vector<Placement> list_;
};

}  // namespace shardwise
