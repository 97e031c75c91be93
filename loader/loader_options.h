#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace shardwise {

/// What happens to the last records of an epoch, if they do not fill a batch.
enum class LastBatch {
  drop,  ///< they are left out of this epoch (another epoch has another order, so leaves out
         ///< others)
  pad,   ///< zeros fill up the batch; Batch::mask tells which rows are real
  wrap,  ///< the first samples of the next epoch fill it; only the run's very last batch is padded
};

enum class RecordOrder { sequential, shuffled };

/// What happens to a record whose reading throws corrupt, io or not_found. Any other error ends the
/// run.
enum class BadRecords {
  fail,        ///< the next() that would deliver it throws
  substitute,  ///< another record takes its place: the first of up to 16 that can be read, which
               ///< follow from seed and place alone, so are the same on any mesh
  mask,        ///< its row is zeros, its mask false, its weight 0
};

/// "drop", "sequential", "fail", ...
std::string_view name(LastBatch last_batch);
std::string_view name(RecordOrder order);
std::string_view name(BadRecords bad_records);

/// Inverse of name(). Throws invalid_argument, listing the names there are.
LastBatch parse_last_batch(std::string_view text);
RecordOrder parse_record_order(std::string_view text);
BadRecords parse_bad_records(std::string_view text);

struct LoaderOptions {
  std::int64_t batch_size = 1;  ///< global: rows over all devices
  std::int64_t epochs = 1;      ///< a resumed run may have more
  RecordOrder order = RecordOrder::shuffled;
  LastBatch last_batch = LastBatch::drop;
  BadRecords bad_records = BadRecords::fail;

  /// Batches held ready besides the one delivered last. 1 or more.
  int prefetch = 2;

  /// Most memory that the batches held ready may take in this process, replicas counted; 0: no
  /// limit. Where it holds fewer batches than `prefetch`, that many are held. A batch of buckets
  /// counts as its largest.
  std::size_t prefetch_bytes = 0;

  /// Threads that read records; each may block on its file.
  int threads = 1;

  /// Of several loaders that share a run, as the workers of torch's DataLoader do: this one
  /// delivers the batches b with b % parts == part.
  std::int64_t parts = 1, part = 0;
};

/// Which samples have been delivered, whatever their order: the sum over their numbers n, counted
/// over the whole run, of A n + B n^2 + C n^3 mod 2^128 with odd constants that are written down in
/// loader/detail/delivery_digest.cc. What it must be after a number of samples is known in closed
/// form, so a lost or repeated one is found by one comparison.
struct DeliveryDigest {
  std::uint64_t high = 0, low = 0;

  bool operator==(const DeliveryDigest&) const = default;
};

/// Which row of which batch of a run.
struct BatchRow {
  std::int64_t batch, row;

  bool operator==(const BatchRow&) const = default;
};

/// Where a run of batches stands: all that a resume needs, whatever the mesh. At most 256 bytes as
/// text, to be saved with the model.
///
/// What follows next_batch describes the run, so that another one can be refused by name. Loaders
/// fill it in; it counts for nothing where batch_size is 0, as in a state to start with.
///
/// Value type, thread-compatible.
///
///   LoaderState state{.seed = 1, .next_batch = 40};
///   loader_state_from_json(to_json(state)) == state;
struct LoaderState {
  std::uint64_t seed = 0;
  std::int64_t next_batch = 0;  ///< counted from the start of the run, over all epochs
  std::uint64_t source = 0;     ///< Source::fingerprint()
  std::uint64_t stages = 0;     ///< hash of Source::describe(): changes after next_batch are free
  std::int64_t batch_size = 0;
  RecordOrder order = RecordOrder::shuffled;
  LastBatch last_batch = LastBatch::drop;
  BadRecords bad_records = BadRecords::fail;
  DeliveryDigest digest = {};  ///< of the batches before next_batch

  bool operator==(const LoaderState&) const = default;
};

/// JSON text, as in {"seed":1,"next_batch":40,"source":"00000000000000ab","stages":"...",
/// "batch_size":256,"order":"shuffled","last_batch":"drop","bad":"fail","digest":"..."}; 256 bytes
/// at most. "bad" is bad_records.
std::string to_json(const LoaderState& state);

/// Reads what to_json writes; blanks and the order of the keys are free. Throws invalid_argument
/// for anything else, as a missing, repeated or unknown key, naming it.
LoaderState loader_state_from_json(std::string_view text);

}  // namespace shardwise
