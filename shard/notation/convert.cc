#include "shardwise/shard/notation/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "shardwise/shard/error.h"
#include "shardwise/shard/notation/detail/axis_order.h"
#include "shardwise/shard/notation/detail/dim_piece.h"

namespace shardwise {
namespace {

constexpr std::int64_t kMostTiles = std::int64_t{1} << 24;

// A Sharding and a Placements answer the same three questions, so both can be compared with a
// Sharding.

/// True if the policy allows the extent.
bool allows(const Sharding& sharding, std::size_t dim, std::int64_t extent) {
  const UnevenPolicy& policy = sharding.policy();
  if (policy.kind() == UnevenPolicy::Kind::strict) return extent % sharding.tiles(dim) == 0;
  if (policy.kind() != UnevenPolicy::Kind::tile_sizes || sharding.tiles(dim) == 1) return true;
  std::int64_t sum = 0;
  for (const std::int64_t size : policy.sizes()[dim]) sum += size;
  return sum == extent;
}

bool allows(const Placements&, std::size_t, std::int64_t) { return true; }

/// The indices of a dim that a position holds; absent if they have gaps.
std::optional<IndexRun> run_at(const Sharding& sharding, std::size_t dim, std::int64_t extent,
                               std::int64_t position) {
  const TileRange range = sharding.tile_range(dim, sharding.tile_index(position, dim), extent);
  return IndexRun{range.begin, range.end};
}

std::optional<IndexRun> run_at(const Placements& placements, std::size_t dim, std::int64_t extent,
                               std::int64_t position) {
  const detail::DimPiece piece =
      detail::piece_at(placements.mesh(), placements.list(), dim, extent, position);
  if (piece.has_gaps()) return std::nullopt;
  return IndexRun{piece.begin(), piece.begin() + piece.length()};
}

std::string name_of(const Sharding& sharding) {
  return fmt::format("policy {}", sharding.policy().to_string());
}

std::string name_of(const Placements& placements) { return placements.to_string(); }

/// Two empty runs are the same, wherever they are.
bool same_run(const std::optional<IndexRun>& a, const std::optional<IndexRun>& b) {
  if (!a || !b) return false;
  return *a == *b || (a->begin == a->end && b->begin == b->end);
}

std::string text_of(const std::optional<IndexRun>& run) {
  return run ? fmt::format("[{}:{}]", run->begin, run->end) : "several runs";
}

/// Absent if each position holds the same part of a dim of this extent under both; else the
/// difference. `same_if_even`: they are known to agree for every extent that the tiles divide.
template <class Other>
std::optional<std::string> difference(const Sharding& sharding, const Other& other, std::size_t dim,
                                      std::int64_t extent, bool same_if_even) {
  const std::int64_t tiles = sharding.tiles(dim);
  if (!allows(sharding, dim, extent)) return name_of(sharding) + " does not allow it";
  if (!allows(other, dim, extent)) return name_of(other) + " does not allow it";
  if (same_if_even && extent % tiles == 0) return std::nullopt;
  if (tiles > kMostTiles) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format(
            "compare placements: dim {} of extent {} is cut {} ways; compared are at most {}", dim,
            extent, tiles, kMostTiles));
  }
  Index tile = Index::filled(sharding.rank(), 0);
  for (; tile[dim] < tiles; ++tile[dim]) {
    const std::int64_t position = sharding.position_of(tile, 0);
    const auto a = run_at(sharding, dim, extent, position);
    const auto b = run_at(other, dim, extent, position);
    if (same_run(a, b)) continue;
    return fmt::format("position {} holds {} by {}, {} by {}", position, text_of(a),
                       name_of(sharding), text_of(b), name_of(other));
  }
  return std::nullopt;
}

std::int64_t padded(std::size_t dim, std::int64_t extent, std::int64_t ways) {
  std::int64_t result = 0;
  if (__builtin_add_overflow(extent, (ways - extent % ways) % ways, &result)) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("compare placements: dim {} of extent {}, padded to a multiple of {}, is over "
                    "2^63 - 1",
                    dim, extent, ways));
  }
  return result;
}

struct Judgement {
  Verdict verdict = Verdict::same;
  Shape shape = {};
  std::string reason = {};
};

/// `same_if_even`: per dim.
template <class Other>
Judgement judge(const Sharding& sharding, const Other& other, const Shape& shape,
                const std::vector<bool>& same_if_even) {
  Judgement result{.shape = shape};
  const auto in_words = [&](std::size_t dim, const std::string& what) {
    return fmt::format("dim {} of extent {} is cut {} ways by axes \"{}\": {}", dim, shape[dim],
                       sharding.tiles(dim), fmt::join(sharding.spec()[dim], "+"), what);
  };
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    const auto found = difference(sharding, other, dim, shape[dim], same_if_even[dim]);
    if (!found) continue;
    result.verdict = Verdict::same_after_padding;
    result.reason = in_words(dim, *found);
    break;
  }
  if (result.verdict == Verdict::same) return result;
  Shape even = shape;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    even[dim] = padded(dim, shape[dim], sharding.tiles(dim));
    const auto found = difference(sharding, other, dim, even[dim], same_if_even[dim]);
    if (!found) continue;
    const std::string when =
        even[dim] == shape[dim] ? "" : fmt::format("padded to {}, ", even[dim]);
    return {Verdict::not_expressible, shape, in_words(dim, when + *found)};
  }
  result.shape = even;
  result.reason += fmt::format("; padded to {}, both are the same", shardwise::to_string(even));
  return result;
}

template <class To>
Conversion<To> conversion(Judgement judgement, To result) {
  Conversion<To> made{judgement.verdict, std::nullopt, judgement.shape,
                      std::move(judgement.reason)};
  if (made.verdict != Verdict::not_expressible) made.result = std::move(result);
  return made;
}

bool fits_one_shape(const Sharding& sharding) {
  return sharding.policy().kind() == UnevenPolicy::Kind::tile_sizes;
}

}  // namespace

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::same:
      return "same placement";
    case Verdict::same_after_padding:
      return "same after padding";
    case Verdict::not_expressible:
      break;
  }
  return "not expressible";
}

Conversion<Sharding> to_sharding(const Placements& placements, const Shape& shape,
                                 UnevenPolicy policy) {
  placements.local_shape(0, shape);  // throws if they do not fit
  const Mesh& mesh = placements.mesh();
  for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
    const Placement& placement = placements.list()[axis];
    if (placement.kind != Placement::Kind::partial) continue;
    return {Verdict::not_expressible, std::nullopt, shape,
            fmt::format("axis \"{}\" has {}: a spec says where values lie, not that they are still "
                        "to be reduced",
                        mesh.axes()[axis].name, placement.to_string())};
  }
  std::vector<PartitionSpec::Entry> entries;
  std::vector<bool> same_if_even;
  std::string unmatched;
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    detail::AxisOrder order = detail::spec_order(placements, dim);
    entries.push_back(std::move(order.entry));
    same_if_even.push_back(order.problem.empty() &&
                           policy.kind() != UnevenPolicy::Kind::tile_sizes);
    if (unmatched.empty()) unmatched = std::move(order.problem);
  }
  Sharding sharding(mesh, PartitionSpec(std::move(entries)), std::move(policy));
  Judgement judgement = judge(sharding, placements, shape, same_if_even);
  if (judgement.verdict == Verdict::not_expressible && !unmatched.empty()) {
    judgement.reason = unmatched + "; " + judgement.reason;
  }
  return conversion(std::move(judgement), std::move(sharding));
}

Conversion<Placements> to_placements(const Sharding& sharding, const Shape& shape) {
  sharding.shard_shape(shape);  // throws if it does not fit
  std::vector<Placement> list;
  std::string problem = detail::placement_order(sharding, list);
  if (!problem.empty()) return {Verdict::not_expressible, std::nullopt, shape, std::move(problem)};
  Placements placements(sharding.mesh(), std::move(list));
  const std::vector<bool> same_if_even(shape.size(), !fits_one_shape(sharding));
  Judgement judgement = judge(sharding, placements, shape, same_if_even);
  return conversion(std::move(judgement), std::move(placements));
}

}  // namespace shardwise
