#pragma once

#include <cstddef>
#include <cstdint>
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

}  // namespace shardwise
