#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/loader/host_loader.h"
#include "shardwise/loader/loader_options.h"
#include "shardwise/loader/placement.h"
#include "shardwise/loader/source.h"
#include "shardwise/runtime/sharded_array.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// One global batch on the devices.
struct Batch {
  std::int64_t index;                ///< within the run
  std::int64_t epoch;                ///< of its first row
  std::vector<ShardedArray> fields;  ///< in the order of the placements; shape [batch_size, ...]

  /// bool [batch_size], cut as the batch dim of the first placement: false in rows without a record
  /// (padding and masked bad records).
  ShardedArray mask;

  /// f32 [batch_size], cut as the mask: 1 / valid_rows in rows with a record, else 0. A mean over a
  /// batch is the sum of a row's value times its weight; it is the same on any mesh.
  ShardedArray weights;

  std::int64_t valid_rows;  ///< batch_size unless the batch is padded; masked bad records count
  std::vector<std::string> names = {};  ///< of the fields

  /// The field of this name. Throws no_such_name, listing the batch's fields.
  const ShardedArray& field(std::string_view name) const;

  /// Rows of the batch, including those without a record: batch_size.
  std::int64_t size() const { return mask.shape()[0]; }
  const ShardedArray& operator[](std::string_view) const = delete;  // field("image")
};

/// Reads minibatches from a source onto devices, ahead of time, on its own threads.
///
/// Batch b of a run is a pure function of (seed, b, batch size, source): the same rows in the same
/// order for any mesh, sharding, thread count or prefetch depth. Each device's box of each field is
/// read straight into that device's memory (MemoryKind::loader). The loader asks the source only
/// for the part of a record that the box needs; replicas are copies. If the devices belong to
/// several processes, each reads only the boxes of its own devices and waits for no other; the
/// batches are the same for any number of processes. Memory is bounded: `prefetch` batches,
/// allocated as they are read, and those that the caller holds.
///
/// An error in reading batch b is thrown by the next() that would deliver b, after the batches
/// before it; every later next() throws it again. If a device has no room for a batch, it is asked
/// again later; the error is thrown only if there is still no room when that batch is due. The
/// destructor may run at any point: it stops the threads and joins them after their current reads.
///
/// Each delivered sample is added to a digest (DeliveryDigest), which is compared with its known
/// value at every batch and when a run is resumed. If a process has no part of a row, the row
/// counts as delivered by the processes that have one.
///
/// Thread-compatible: one consumer.
///
///   Loader loader(devices, source, {{"image", Sharding(mesh, PartitionSpec::parse("data,-,-"))},
///                                   {"label", Sharding(mesh, PartitionSpec::parse("data"))}},
///                 {.batch_size = 256, .epochs = 5}, {.seed = 1});
///   for (Batch& batch : loader) { ... }  // or while (auto batch = loader.next()) { ... }
class Loader final : public LoaderRun {
 public:
  /// Starts at `state`; `devices` must outlive the loader. Throws invalid_argument for impossible
  /// options, a source too small for a single batch, a placement that does not fit its field (the
  /// message names it), a state past the end, or a state of another run (the message says which
  /// parts differ); corrupt if the state's digest is not that of the samples before it;
  /// no_such_name for an unknown field; not_found for an unknown device; resource_exhausted if
  /// prefetch_bytes does not hold one batch.
  Loader(Devices& devices, std::shared_ptr<const Source> source,
         const std::vector<FieldPlacement>& placements, LoaderOptions options,
         LoaderState state = {});

  /// The next batch, or nothing at the end of the last epoch. Blocks until it is ready. Throws
  /// corrupt if the delivered samples are not the expected ones.
  std::optional<Batch> next();

  /// Iterates over the remaining batches, as next() returns them.
  auto begin() { return detail::BatchIterator(*this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  Devices& devices_;
};

}  // namespace shardwise
