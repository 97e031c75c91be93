#pragma once

#include <cstdint>
#include <memory>

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

}  // namespace shardwise
