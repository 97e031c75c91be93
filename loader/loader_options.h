#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "shardwise/shard/error.h"

namespace shardwise {

/// How to treat the last records of an epoch if they do not fill a batch.
enum class LastBatch {
  drop,  ///< they are left out of this epoch (another epoch has another order, so leaves out
         ///< others)
  pad,   ///< zeros fill up the batch; Batch::mask tells which rows are real
  wrap,  ///< the first samples of the next epoch fill it; only the run's very last batch is padded
};

enum class RecordOrder { sequential, shuffled };

/// How to treat a record whose reading throws corrupt, io or not_found. Any other error ends the
/// run.
enum class BadRecords {
  fail,        ///< the next() that would deliver it throws
  substitute,  ///< another record takes its place: the first readable one of up to 16, which
               ///< depend on seed and place alone, so they are the same on any mesh
  mask,        ///< its row is zeros, its mask false, its weight 0
};

/// "drop", "sequential", "fail", ...
std::string_view name(LastBatch last_batch);
std::string_view name(RecordOrder order);
std::string_view name(BadRecords bad_records);

/// Inverse of name(). Throws invalid_argument, listing the names.
LastBatch parse_last_batch(std::string_view text);
RecordOrder parse_record_order(std::string_view text);
BadRecords parse_bad_records(std::string_view text);

struct LoaderOptions {
  std::int64_t batch_size = 1;  ///< global: rows over all devices
  std::int64_t epochs = 1;      ///< a resumed run may have more
  RecordOrder order = RecordOrder::shuffled;
  LastBatch last_batch = LastBatch::drop;
  BadRecords bad_records = BadRecords::fail;

  /// Number of batches held ready in addition to the one delivered last. 1 or more.
  int prefetch = 2;

  /// Most memory that the batches held ready may take in this process, replicas counted; 0: no
  /// limit. If fewer than `prefetch` batches fit, only those are held ready. A batch with buckets
  /// counts with its largest shape.
  std::size_t prefetch_bytes = 0;

  /// Threads that read records; each may block on its file.
  int threads = 1;

  /// For several loaders that share a run, like the workers of torch's DataLoader: this one
  /// delivers the batches b with b % parts == part.
  std::int64_t parts = 1, part = 0;
};

/// Identifies the set of delivered samples; their order does not count. It is the sum of
/// A n + B n^2 + C n^3 mod 2^128 over the samples' numbers n, which count over the whole run. The
/// odd constants A, B and C are in loader/detail/engine/delivery_digest.cc. The right value after
/// any number of samples is known in closed form, so one comparison finds a lost or repeated
/// sample.
struct DeliveryDigest {
  std::uint64_t high = 0, low = 0;

  bool operator==(const DeliveryDigest&) const = default;
};

/// A row of a batch: the batch's number in the run, and the row's number in the batch.
struct BatchRow {
  std::int64_t batch, row;

  bool operator==(const BatchRow&) const = default;
};

/// The state of a run of batches: all that a resume needs, on any mesh. At most 256 bytes as text,
/// to be saved with the model.
///
/// The members after next_batch describe the run, so that a loader can refuse the state of another
/// run and name the difference. Loaders fill them in; they are ignored if batch_size is 0, as in a
/// new state.
///
/// Value type, thread-compatible.
///
///   LoaderState state{.seed = 1, .next_batch = 40};
///   loader_state_from_json(to_json(state)) == state;
struct LoaderState {
  std::uint64_t seed = 0;
  std::int64_t next_batch = 0;  ///< counted from the start of the run, over all epochs
  std::uint64_t source = 0;     ///< Source::fingerprint()
  std::uint64_t stages = 0;  ///< hash of Source::describe(); changes after next_batch do not count
  std::int64_t batch_size = 0;
  RecordOrder order = RecordOrder::shuffled;
  LastBatch last_batch = LastBatch::drop;
  BadRecords bad_records = BadRecords::fail;
  DeliveryDigest digest = {};  ///< of the batches before next_batch

  bool operator==(const LoaderState&) const = default;
};

/// JSON text, as in {"seed":1,"next_batch":40,"source":"00000000000000ab","stages":"...",
/// "batch_size":256,"order":"shuffled","last_batch":"drop","bad":"fail","digest":"..."}; at most
/// 256 bytes. "bad" is bad_records.
std::string to_json(const LoaderState& state);

/// Reads the output of to_json, with any blanks and in any order of the keys. Throws
/// invalid_argument for any other text; it names a missing, repeated or unknown key.
LoaderState loader_state_from_json(std::string_view text);

}  // namespace shardwise
