#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/loader/source.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

/// A field of the source that goes to the devices, and how its batches [batch, record dims...] are
/// cut. Value type.
///
/// If the source has a field "x" and none called "x.length", the field "x.length" is each record's
/// own extent in dim 0 of "x": i32 [batch]; 0 in rows without a record.
struct FieldPlacement {
  std::string field;
  Sharding sharding;

  /// For a ragged field, ascending: the extent of dim 1 of a batch is the least of these that holds
  /// the longest record of the batch, so shapes differ by batch, but not by mesh. Empty: always the
  /// extent in the field's shape.
  std::vector<std::int64_t> buckets = {};

  /// If true, a record that is longer than the last bucket is cut to it; if false, it is an error.
  bool truncate = false;
};

/// Places all fields of the source by one spec. Throws invalid_argument, naming the first field
/// whose rank (the batch and the record's dims) differs from the spec's: nothing is replicated
/// implicitly.
std::vector<FieldPlacement> place_all(const Source& source, const Mesh& mesh,
                                      std::string_view spec);

/// Places some fields, each by its own spec, in the source's order; the others are not read. Throws
/// no_such_name for an unknown field, and as place_all().
///
///   place_fields(*source, mesh, {{"image", "data,-,-"}, {"label", "data"}}).size();  // 2
std::vector<FieldPlacement> place_fields(
    const Source& source, const Mesh& mesh,
    const std::map<std::string, std::string, std::less<>>& specs);

/// Places all fields of the source with the batch cut over `axes` ("data", "data+model") and the
/// record's dims whole. Throws no_such_name for an unknown axis.
std::vector<FieldPlacement> cut_batch(const Source& source, const Mesh& mesh,
                                      std::string_view axes);

}  // namespace shardwise
