#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/shard/box.h"
#include "shardwise/shard/mesh.h"

namespace shardwise {

/// Indices [begin, end) of one dim.
struct IndexRun {
  std::int64_t begin, end;

  bool operator==(const IndexRun&) const = default;
};

/// Most runs of one dim that can be asked for.
inline constexpr std::size_t kMostRuns = std::size_t{1} << 20;

/// How the values of a partial tensor become the tensor's.
enum class PartialOp { sum, avg, product, max, min };

/// What one mesh axis does to a tensor.
///
/// Value type, thread-compatible.
struct Placement {
  enum class Kind { replicate, shard, strided_shard, partial };

  Kind kind = Kind::replicate;
  std::size_t dim = 0;            ///< that shard and strided_shard cut
  std::int64_t split = 1;         ///< strided_shard: chunks that are made first, >= 1; else 1
  PartialOp op = PartialOp::sum;  ///< of partial

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

/// What each device holds of a tensor, said per mesh axis, as PyTorch's DTensor does (a Sharding
/// says it per tensor dim).
///
/// Axes are applied in mesh order. Each cuts what those before it left, by torch.chunk's rule:
/// blocks of ceil(length / size), the last ones short or empty. A strided shard first makes `split`
/// chunks and then cuts each of them; the device at i gets the i-th part of every one. So it may
/// hold several runs of indices, and a later axis may count as the major one: split = size of the
/// later axis is what FSDP over tensor parallelism writes. (Source: PyTorch 2.15,
/// torch.distributed.tensor.)
///
/// Invariant: one placement per mesh axis; strided shards split by 1 or more; partial ops are
/// all the same, but that sum and avg may go together, as in DTensor.
///
/// Immutable value type. Queries for one position take O(rank * mesh rank), whatever the extents
/// and split factors, and need a shape that has every dim that is cut: else they throw
/// invalid_argument. Empty pieces of a dim are at its end, as DTensor has it.
///
///   const Placements placements = Placements::parse(Mesh::parse("2,2"), "S(0),S(0)");
///   placements.local_shape(1, {5, 8});             // [1, 8], where a Sharding has [2, 8]
///   placements.box_at(1, {5, 8});                  // [2:3, 0:8]
class Placements {
 public:
  /// Throws invalid_argument, naming the axis, where the invariant would not hold.
  Placements(Mesh mesh, std::vector<Placement> list);

  /// Reads one placement per axis, "S(0),R,P(sum)", in our words or in DTensor's own:
  /// "(Shard(dim=0), Replicate(), Partial(sum))", "_StridedShard(dim=0, split_factor=2)",
  /// "_S(0, 2)"; "P" is P(sum). Throws invalid_argument, saying at which character; also for a
  /// negative dim, which DTensor counts from the tensor's last dim: here write the dim itself.
  static Placements parse(Mesh mesh, std::string_view text);

  const Mesh& mesh() const { return mesh_; }

  /// Per mesh axis.
  const std::vector<Placement>& list() const { return list_; }

  /// The devices hold values that are still to be reduced.
  bool is_partial() const;

  /// How many indices of each dim a position holds.
  Shape local_shape(std::int64_t position, const Shape& shape) const;

  /// The first index of each dim that a position holds; the extent where it holds none.
  Index global_offset(std::int64_t position, const Shape& shape) const;

  /// The box at a position; absent where it holds several runs of a dim.
  std::optional<Box> box_at(std::int64_t position, const Shape& shape) const;

  /// Per dim the indices that a position holds: ascending, no run touching the next. O(rank + runs
  /// * log extent) of steps that each take O(mesh rank). Throws unsupported beyond kMostRuns of a
  /// dim.
  std::vector<std::vector<IndexRun>> runs_at(std::int64_t position, const Shape& shape) const;

  /// The first form that parse() reads.
  std::string to_string() const;

  /// Same mesh, same placements. Different ones may still place alike: see convert.h.
  bool operator==(const Placements&) const = default;

 private:
  void check(const Shape& shape) const;

  Mesh mesh_;
  std::vector<Placement> list_;
};

}  // namespace shardwise
