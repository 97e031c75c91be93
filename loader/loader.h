#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/loader/loader_state.h"
#include "shardwise/loader/source.h"
#include "shardwise/runtime/sharded_array.h"

namespace shardwise {

/// What happens to the last records of an epoch, if they do not fill a batch.
enum class LastBatch {
  drop,  ///< they are left out of this epoch (another epoch has another order, so leaves out
         ///< others)
  pad,   ///< zeros fill up the batch; Batch::mask tells which rows are real
};

enum class RecordOrder { sequential, shuffled };

struct LoaderOptions {
  std::int64_t batch_size = 1;  ///< global: rows over all devices
  std::int64_t epochs = 1;      ///< not part of a run's fingerprint: a resumed run may have more
  RecordOrder order = RecordOrder::shuffled;
  LastBatch last_batch = LastBatch::drop;

  /// Batches held ready on the devices besides the one delivered last. 1 or more.
  int prefetch = 2;

  /// Threads that read records; each may block on its file.
  int threads = 1;
};

/// A field of the source that goes to the devices, and how its batches [batch, record dims...] are
/// cut. Value type.
struct FieldPlacement {
  std::string field;
  Sharding sharding;
};

/// One global batch on the devices.
struct Batch {
  std::int64_t index;  ///< within the run
  std::int64_t epoch;
  std::vector<ShardedArray> fields;  ///< in the order of the placements; shape [batch_size, ...]

  /// bool [batch_size], cut as the batch dim of the first placement: false in padded rows.
  ShardedArray mask;

  std::int64_t valid_rows;  ///< batch_size, but for a padded batch
};

/// Waits and work since the start, in seconds and counts, to see what holds a job up.
struct LoaderStats {
  std::int64_t batches = 0;
  std::int64_t records = 0;            ///< distinct records read for delivered batches
  std::size_t bytes_placed = 0;        ///< written into device buffers, replicas counted
  double consumer_waited_seconds = 0;  ///< next() had to wait: the loader holds up the job
  double readers_waited_seconds = 0;   ///< the ring was full: the job holds up the loader
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
/// Thread-compatible: one consumer.
///
///   Loader loader(devices, source, {{"image", Sharding(mesh, PartitionSpec::parse("data,-,-"))},
///                                   {"label", Sharding(mesh, PartitionSpec::parse("data"))}},
///                 {.batch_size = 256, .epochs = 5}, {.seed = 1});
///   while (auto batch = loader.next()) { ... }
class Loader {
 public:
  /// Starts at `state`; `devices` must outlive the loader. Throws invalid_argument for impossible
  /// options, a source too small for a single batch, a sharding whose rank is not the field's plus
  /// one, a state past the end, or a state of another run (the message names both fingerprints);
  /// not_found for an unknown field or device.
  Loader(Devices& devices, std::shared_ptr<const Source> source,
         const std::vector<FieldPlacement>& placements, LoaderOptions options,
         LoaderState state = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// The next batch, or nothing at the end of the last epoch. Blocks until it is there.
  std::optional<Batch> next();

  /// Where the run stands after the batches delivered so far: resuming from it delivers the rest.
  LoaderState state() const;

  std::int64_t batches_per_epoch() const;
  LoaderStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shardwise
