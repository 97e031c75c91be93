#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "shardwise/loader/order/mix_order.h"
#include "shardwise/loader/source.h"
#include "shardwise/shard/error.h"

namespace shardwise {

// Stages that choose records and leave them unchanged. Each reads only the requested boxes.

/// The records in another random order each epoch: record i of epoch e is record Shuffle(size, seed
/// ^ salt, e).at(i) of the source. A run that is shuffled as a whole (LoaderOptions::order) needs
/// no such stage; a source inside mix() does. Throws invalid_argument if the source is null.
///
///   const auto all = shuffle(source, 7);
///   all->size() == source->size();
std::shared_ptr<const Source> shuffle(std::shared_ptr<const Source> source, std::uint64_t salt = 0);

/// Records begin .. end-1. Throws invalid_argument if the range is not within the source.
///
///   take(source, 10, 30)->size();     // 20
std::shared_ptr<const Source> take(std::shared_ptr<const Source> source, std::int64_t begin,
                                   std::int64_t end);

/// The first `count` records.
inline std::shared_ptr<const Source> take(std::shared_ptr<const Source> source,
                                          std::int64_t count) {
  return take(std::move(source), 0, count);
}

/// All records `times` times over, as one epoch. Each time counts as an epoch of the source, so a
/// shuffle before this stage gives another order, and an augmentation other numbers: record r of
/// epoch e is record r % n of the source's epoch e * times + r / n. Throws invalid_argument if
/// times < 1 or the size is over 2^63 - 1.
///
///   repeat(source, 3)->size() == 3 * source->size();
std::shared_ptr<const Source> repeat(std::shared_ptr<const Source> source, std::int64_t times);

/// Several sources of equal fields, drawn from by integer weights: {3, 1} gives three records of
/// the first for one of the second, spread evenly (MixOrder) and exact over every four. shape[0] of
/// a ragged field may differ: the result has the largest.
///
/// An epoch is enough periods to see each source of a weight over 0 at least once: the largest size
/// / weight, rounded up, times the sum of the weights. Smaller sources repeat, and continue where
/// the epoch before ended: draw j of a source of n records is its record j % n in its epoch j / n.
/// So shuffle() around a source gives it another order each time.
///
/// The weights may change at given samples of the run (a batch of B begins at multiples of B); the
/// epoch's length stays. Use RecordOrder::sequential if they change. A resumed run may have other
/// changes after the samples that it has delivered; the changes before them must be the same.
///
/// Throws invalid_argument if a source is null or empty, fields differ, or there is not one weight
/// per source; and as MixOrder.
///
///   const auto mixed = mix({shuffle(a), shuffle(b)}, {3, 1});
std::shared_ptr<const Source> mix(std::vector<std::shared_ptr<const Source>> sources,
                                  std::vector<std::int64_t> weights,
                                  std::vector<MixChange> changes = {});

}  // namespace shardwise
