#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "shardwise/loader/loader_options.h"
#include "shardwise/loader/loader_stats.h"
#include "shardwise/loader/placement.h"
#include "shardwise/loader/source.h"
#include "shardwise/runtime/sharded_array.h"

namespace shardwise {

namespace detail {
class Engine;
}

/// One global batch on the devices.
struct Batch {
  std::int64_t index;                ///< within the run
  std::int64_t epoch;                ///< of its first row
  std::vector<ShardedArray> fields;  ///< in the order of the placements; shape [batch_size, ...]

  /// bool [batch_size], cut as the batch dim of the first placement: false in rows without a
  /// record, as are padding and masked bad records.
  ShardedArray mask;

  /// f32 [batch_size], cut as the mask: 1 / valid_rows in rows with a record, else 0. A mean over a
  /// batch is the sum of a row's value times its weight; it is the same on any mesh.
  ShardedArray weights;

  std::int64_t valid_rows;  ///< batch_size, but for a padded batch; masked bad records count
};

/// Minibatches from a source onto devices, read ahead by its own threads.
///
/// Batch b of a run is a pure function of (seed, b, batch size, source): the same rows in the same
/// order for any mesh, sharding, thread count or prefetch depth. Each device's box of each field
/// is read straight into that device's memory (MemoryKind::loader); of a record only the part that
/// the box needs is asked for; replicas are copies. Where the devices are spread over processes,
/// each reads what its own devices hold, and the batches are the same for any number of processes;
/// none waits for another. Memory is bounded: prefetch batches, taken as they are read, and those
/// that the caller holds.
///
/// An error in reading batch b is thrown by the next() that would deliver b, after the batches
/// before it; every later next() throws it again. Where a device has no room for a batch, it is
/// asked again later, and the error is thrown only if there is still none when that batch is due.
/// Destruction at any point stops the threads and joins them after the reads they are in.
///
/// Each delivered sample is added to a digest (DeliveryDigest), which is compared with what it must
/// be at every batch and where a run is resumed. A process counts the rows that it has no part of
/// as delivered by those that do.
///
/// Thread-compatible: one consumer.
///
///   Loader loader(devices, source, {{"image", Sharding(mesh, PartitionSpec::parse("data,-,-"))},
///                                   {"label", Sharding(mesh, PartitionSpec::parse("data"))}},
///                 {.batch_size = 256, .epochs = 5}, {.seed = 1});
///   while (auto batch = loader.next()) { ... }
class Loader {
 public:
  /// Starts at `state`; `devices` must outlive the loader. Throws invalid_argument for impossible
  /// options, a source too small for a single batch, a placement that does not fit its field (the
  /// message names it), a state past the end, or a state of another run (the message says which
  /// parts differ); corrupt where the state's digest is not that of the samples before it;
  /// not_found for an unknown field or device; resource_exhausted where prefetch_bytes does not
  /// hold one batch.
  Loader(Devices& devices, std::shared_ptr<const Source> source,
         const std::vector<FieldPlacement>& placements, LoaderOptions options,
         LoaderState state = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next batch, or nothing at the end of the last epoch. Blocks until it is there. Throws
  /// corrupt where the delivered samples are not those that should have been.
  std::optional<Batch> next();

  /// Where the run stands after the batches delivered so far: resuming from it delivers the rest.
  LoaderState state() const;

  /// With LastBatch::wrap, where batches run over the end of epochs, rounded up.
  std::int64_t batches_per_epoch() const;

  /// Of LoaderOptions::prefetch, how many batches the devices had room for when the loader was
  /// made, beside one that the job holds. With room for fewer the loader runs, but reads less far
  /// ahead.
  int prefetch_that_fits() const { return prefetch_that_fits_; }

  /// Of the whole run, delivered or not.
  std::int64_t batches() const;

  /// Which step sees a record in an epoch; nothing where that epoch drops it. O(1). Throws
  /// invalid_argument where there is no such record or epoch.
  std::optional<BatchRow> step_of(std::int64_t record, std::int64_t epoch) const;

  LoaderStats stats() const;

  /// What BadRecords::substitute or mask have passed over.
  BadRecordLedger bad_records() const;

 private:
  Devices& devices_;
  std::unique_ptr<detail::Engine> engine_;
  int prefetch_that_fits_ = 0;
};

}  // namespace shardwise
