#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/loader/source.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// Selects the records that stay. Value type.
struct RecordPredicate {
  /// Stands for the function in fingerprints and caches: change it if the function changes its
  /// decisions. Must not be empty.
  std::string name;

  /// `fields`: the function reads them. `lengths`: the function needs only their lengths, which are
  /// cheap to find.
  std::vector<std::string> fields = {}, lengths = {};

  /// True if the record stays. Gets `fields` and then `lengths`, in their orders. A pure function,
  /// called on several threads at once.
  std::function<bool(std::span<const FieldValue>)> keep;
};

struct FilterOptions {
  /// Threads that evaluate; each may block on files.
  int threads = 1;

  /// Called after every 1,024 records or so, one call at a time, on any of the threads. An
  /// exception from it ends the evaluation (cancelled, say).
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};

  /// File for the result, which is reused if source (by fingerprint) and predicate (by name) are
  /// the same. A file with other or damaged data is replaced: a temporary file next to it is
  /// renamed, so processes may share it. Empty: no file.
  std::filesystem::path cache = {};
};

/// The records for which the predicate holds, in their order. The predicate is evaluated once per
/// record, at epoch 0 and seed 0. A bit per record is stored, and an index of 1/32 of that size
/// that finds the j-th kept record in O(log size).
///
/// Throws invalid_argument if the source is null, its order changes with the epoch (filter first,
/// then shuffle), the predicate has no name or function, no record is kept or an option is
/// impossible; no_such_name for an unknown field; corrupt if the cache is a file of another kind,
/// which stays unchanged; io if it cannot be written. Errors of reading pass through, naming the
/// record.
///
///   const auto threes = filter(source, parse_filter("label==3", source->fields()));
///   const auto bright = filter(source, {.name = "bright", .fields = {"image"}, .keep = is_bright},
///                              {.threads = 4, .cache = "images.bright"});
std::shared_ptr<const Source> filter(std::shared_ptr<const Source> source,
                                     const RecordPredicate& predicate,
                                     const FilterOptions& options = {});

/// A predicate from text, for the command line:
///
///     label==3            x<0.5 && label!=2       !(label in 1,2,5) || length(text)>=16
///
/// Comparisons are ==, !=, <, <=, >, >=, and "in" with a list; they are joined by &&, || and !,
/// with parentheses. A field's name stands for its value, so the field must have one element per
/// record; length() is a record's own extent in dim 0. Names with characters other than letters,
/// digits, "_", "." and "/" must be in double quotes. Integers compare exactly with each other, and
/// as f64 with fractions. Throws invalid_argument, naming the wrong character; no_such_name for an
/// unknown field; unsupported for a field whose type kernels cannot compute with.
///
///   parse_filter("label>2", source->fields()).name == "label > 2";
RecordPredicate parse_filter(std::string_view text, std::span<const Field> fields);

}  // namespace shardwise
