#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "shardwise/shard/error.h"
#include "shardwise/shard/notation/placements.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// How well one notation can express another's placement.
enum class Verdict {
  same,                ///< every device holds the same indices of each dim
  same_after_padding,  ///< the same if each dim were padded to a multiple of its ways
  not_expressible,     ///< not even after padding
};

/// "same placement", "same after padding", "not expressible".
std::string_view name(Verdict verdict);

/// The outcome of a conversion, for a tensor of one shape.
///
/// Value type, thread-compatible.
template <class To>
struct Conversion {
  Verdict verdict;

  /// The converted placement, for a tensor of `shape`; absent if not expressible.
  std::optional<To> result;

  /// The shape asked for; padded if the verdict is same_after_padding.
  Shape shape;

  /// For people: the dim, axes and devices that prevent an exact conversion; empty if the verdict
  /// is `same`.
  std::string reason;
};

/// The placements as a spec under a policy for uneven dims. The axes that cut a dim become one
/// tuple, in mesh order; a strided shard's axis follows the later axes, or parts of one, whose
/// sizes multiply to its split factor. This spec says the same for every shape that divides evenly;
/// specs that match by accident for one shape are not sought. Values still to be reduced are not
/// expressible.
///
/// Throws invalid_argument as Placements and Sharding do, and if a padded extent is over 2^63 - 1;
/// unsupported if a dim that does not divide evenly is cut more than 2^24 ways, since each had to
/// be compared.
///
///   const Placements placements = Placements::parse(Mesh::parse("a=2,b=2"), "S(0),S(0)");
///   to_sharding(placements, {4}).result->spec();    // a+b
///   to_sharding(placements, {5}).verdict;           // same after padding: 2,1,1,1, not 2,2,1,0
///   to_sharding(placements, {5}, UnevenPolicy::nested_chunk()).verdict;    // same placement
Conversion<Sharding> to_sharding(const Placements& placements, const Shape& shape,
                                 UnevenPolicy policy = UnevenPolicy());

/// The sharding as one placement per mesh axis: a strided shard if later axes of the dim are more
/// major, split by their product. Not expressible if only a part of an axis is used, or its parts
/// are not adjacent. Throws as above.
Conversion<Placements> to_placements(const Sharding& sharding, const Shape& shape);

}  // namespace shardwise
