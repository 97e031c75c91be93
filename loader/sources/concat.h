#pragma once

#include <memory>
#include <vector>

#include "shardwise/loader/source.h"

namespace shardwise {

/// Several sources one after the other: record i of the second is record sources[0]->size() + i.
/// A source is told the record's number in it, with epoch and seed as they are. Of a ragged field
/// shape[0] may differ: the result has the most.
///
/// Throws invalid_argument where there is none, one is null, or names, types, shapes or the order
/// of fields differ (the message names both).
///
///   const auto both = concat({open_npy("a.npy", "x"), open_npy("b.npy", "x")});
std::shared_ptr<const Source> concat(std::vector<std::shared_ptr<const Source>> sources);

}  // namespace shardwise
