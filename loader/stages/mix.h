#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shardwise/loader/order/mix_order.h"
#include "shardwise/loader/source.h"

namespace shardwise {

/// Several sources of equal fields, drawn from by integer weights: {3, 1} gives three of the first
/// for one of the second, laid out evenly (MixOrder) and exact over every four. Of a ragged field
/// shape[0] may differ: the result has the most.
///
/// An epoch is enough periods to see each source of a weight over 0 at least once: the
/// largest size / weight, rounded up, times the sum of the weights. Smaller sources repeat, and go
/// on where the epoch before ended: draw j of a source of n records is its record j % n in its
/// epoch j / n. So shuffle(), put around a source, gives it another order each time.
///
/// The weights may change at given samples of the run (a batch of B begins at multiples of B); the
/// epoch's length stays. Then deliver in order: RecordOrder::sequential. A run that is resumed may
/// be given other changes after the samples that it has delivered; those before them must be as
/// they were.
///
/// Throws invalid_argument where a source is null or empty, fields differ, weights are
/// not one per source, or as MixOrder.
///
///   const auto mixed = mix({shuffle(a), shuffle(b)}, {3, 1});
std::shared_ptr<const Source> mix(std::vector<std::shared_ptr<const Source>> sources,
                                  std::vector<std::int64_t> weights,
                                  std::vector<MixChange> changes = {});

}  // namespace shardwise
