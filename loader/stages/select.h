#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "shardwise/loader/order/mix_order.h"
#include "shardwise/loader/source.h"

namespace shardwise {

// Stages that choose records and leave them as they are. Each reads nothing but what is asked for.

/// The records in another random order each epoch: record i of epoch e is record
/// Shuffle(size, seed ^ salt, e).at(i) of the source. A run that is shuffled as a whole needs no
/// such stage (LoaderOptions::order); one source inside mix() does. Throws invalid_argument where
/// the source is null.
///
///   const auto all = shuffle(source, 7);
///   all->size() == source->size();
std::shared_ptr<const Source> shuffle(std::shared_ptr<const Source> source, std::uint64_t salt = 0);

/// Records begin .. end-1. Throws invalid_argument where the range is not within the source.
///
///   take(source, 10, 30)->size();     // 20
std::shared_ptr<const Source> take(std::shared_ptr<const Source> source, std::int64_t begin,
                                   std::int64_t end);

/// All records `times` times over, as one epoch. Each time counts as an epoch of the source, so a
/// shuffle before it gives another order, and an augmentation other numbers: record r of epoch e is
/// record r % n of its epoch e * times + r / n. Throws invalid_argument where times < 1 or the size
/// is over 2^63 - 1.
///
///   repeat(source, 3)->size() == 3 * source->size();
std::shared_ptr<const Source> repeat(std::shared_ptr<const Source> source, std::int64_t times);

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
