#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shardwise/shard/notation/placements.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// Whether one notation can express another's placement.
enum class Verdict {
  same,                ///< every device holds the same indices of each dim
  same_after_padding,  ///< so it would be if each dim were padded to a multiple of its ways
  not_expressible,     ///< not even then
};

/// "same placement", "same after padding", "not expressible".
std::string_view name(Verdict verdict);

/// What became of a conversion, for a tensor of one shape.
///
/// Value type, thread-compatible.
template <class To>
struct Conversion {
  Verdict verdict;

  /// What says the same, for a tensor of `shape`; absent where not expressible.
  std::optional<To> result;

  /// The shape asked for; padded where the verdict is so.
  Shape shape;

  /// Which dim, axes and devices stand in the way, for people; empty where it is the same.
  std::string reason;
};

/// What the placements say, as a spec under a policy for uneven dims. Per dim the axes that cut it
/// become one tuple, in mesh order; the axis of a strided shard goes after those later axes, or
/// parts of one, whose sizes have its split factor as product. That is the spec that says the same
/// for every shape that divides evenly; none is looked for that does so for one shape by accident.
/// Values still to be reduced are not expressible.
///
/// Throws invalid_argument as Placements and Sharding do, and where a padded extent is over 2^63 -
/// 1; unsupported where a dim that does not divide evenly is cut more than 2^24 ways, each of which
/// had to be compared.
///
///   const Placements placements = Placements::parse(Mesh::parse("a=2,b=2"), "S(0),S(0)");
///   to_sharding(placements, {4}).result->spec();    // a+b
///   to_sharding(placements, {5}).verdict;           // same after padding: 2,1,1,1, not 2,2,1,0
///   to_sharding(placements, {5}, UnevenPolicy::nested_chunk()).verdict;    // same placement
Conversion<Sharding> to_sharding(const Placements& placements, const Shape& shape,
                                 UnevenPolicy policy = UnevenPolicy());

/// What the sharding says, as one placement per mesh axis: a strided shard where later axes of the
/// dim are more major, split by their product. Not expressible where an axis is used in part, or
/// its parts are apart. Throws as above.
Conversion<Placements> to_placements(const Sharding& sharding, const Shape& shape);

}  // namespace shardwise
