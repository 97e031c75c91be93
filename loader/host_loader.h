#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/loader/loader_options.h"
#include "shardwise/loader/loader_stats.h"
#include "shardwise/loader/placement.h"
#include "shardwise/loader/source.h"
#include "shardwise/runtime/timeline.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/error.h"

namespace shardwise {

namespace detail {
class Engine;
}

/// One mesh position's part of an array of a batch.
struct HostPart {
  std::int64_t position;

  /// The box of the delivered array; `data` holds exactly it, row-major, native endian. Elements of
  /// a bucket beyond a record are zeros.
  Box box;

  /// Owned by the caller until the last copy is dropped: the loader no longer writes to it.
  std::shared_ptr<std::byte> data;
  std::size_t bytes;
};

struct HostArray {
  DType dtype;
  Shape shape;                  ///< of the whole array, [batch_size, ...]
  std::vector<HostPart> parts;  ///< for this process's positions, ascending; replicas are copies

  /// The elements of a part, row-major; valid as long as its data. Without a number: the array's
  /// only part. Throws invalid_argument if T is not its dtype, or the array lacks that part.
  template <TensorElement T>
  std::span<const T> as() const {
    return as<T>(check_part(std::nullopt, dtype_of<T>()));
  }
  template <TensorElement T>
  std::span<const T> as(std::size_t part) const {
    const HostPart& it = parts[check_part(part, dtype_of<T>())];
    return {reinterpret_cast<const T*>(it.data.get()), it.bytes / sizeof(T)};
  }

 private:
  std::size_t check_part(std::optional<std::size_t> part, DType needed) const;
};

/// One global batch, or this process's parts of it, in host memory; as Batch in loader.h.
struct HostBatch {
  std::int64_t index;
  std::int64_t epoch;
  std::vector<HostArray> fields;  ///< in the order of the placements
  HostArray mask;                 ///< bool [batch_size]
  HostArray weights;              ///< f32 [batch_size]
  std::int64_t valid_rows;
  std::vector<std::string> names = {};  ///< of the fields

  /// The field of this name. Throws no_such_name, listing the batch's fields.
  const HostArray& field(std::string_view name) const;

  /// Rows of the global batch, including those without a record: batch_size.
  std::int64_t size() const { return mask.shape[0]; }
};

struct HostLoaderOptions {
  /// The mesh positions that belong to this process, in every placement's mesh. Absent: all.
  std::optional<std::vector<std::int64_t>> positions = std::nullopt;

  /// Allow a part of the batch dim without rows if `positions` are given, as the last of 6 rows on
  /// 4 parts. Otherwise that is an error: the mean of its process would be NaN.
  bool empty_parts = false;

  /// Allocates memory for a part of a batch, at least `bytes`; called by reader threads, one at a
  /// time. Empty: the loader's own memory, aligned to 64 bytes and reused once its last owner has
  /// dropped it.
  std::function<std::shared_ptr<std::byte>(std::int64_t position, std::size_t bytes)> allocate = {};

  /// False: reading begins with the first next() or wait(); until then there are no threads, so a
  /// process may fork.
  bool read_at_once = true;

  /// Records reading and waiting; null: no recording.
  std::shared_ptr<Timeline> timeline = {};
};

namespace detail {
/// The remaining batches of a loader, each taken by its next(). Value type.
template <class L>
class BatchIterator {
 public:
  explicit BatchIterator(L& loader) : loader_(&loader), batch_(loader.next()) {}

  auto& operator*() { return *batch_; }
  BatchIterator& operator++() {
    batch_.reset();  // its memory may be needed for the next one
    batch_ = loader_->next();
    return *this;
  }
  bool operator==(std::default_sentinel_t) const { return !batch_; }

 private:
  L* loader_;
  decltype(std::declval<L&>().next()) batch_;
};
}  // namespace detail

/// The run of batches that a Loader or a HostLoader delivers: its state and its properties.
/// Thread-compatible.
class LoaderRun {
 public:
  LoaderRun(const LoaderRun&) = delete;
  LoaderRun& operator=(const LoaderRun&) = delete;

  /// The state of the run after the batches delivered so far: resuming from it delivers the rest.
  LoaderState state() const;

  /// Rounded up for LastBatch::wrap, whose batches run over the end of epochs.
  std::int64_t batches_per_epoch() const;

  /// Number of batches of the whole run, delivered or not.
  std::int64_t batches() const;

  /// The batch and row that hold a record in an epoch; absent if that epoch drops it. O(1). Throws
  /// invalid_argument if the record or epoch does not exist.
  std::optional<BatchRow> step_of(std::int64_t record, std::int64_t epoch) const;

  LoaderStats stats() const;

  /// The records that BadRecords::substitute or mask skipped.
  BadRecordLedger bad_records() const;

  template <class T>
  void seek(T) = delete;  // give the constructor a LoaderState: {.seed = 1, .next_batch = 40}
  template <class T>
  void restore(T) = delete;  // give the constructor a LoaderState: loader_state_from_json(text)
  template <class T>
  void load_state(T) = delete;  // give the constructor a LoaderState: loader_state_from_json(text)

 protected:
  explicit LoaderRun(std::unique_ptr<detail::Engine> engine);
  ~LoaderRun();

  detail::Engine& engine() { return *engine_; }

 private:
  std::unique_ptr<detail::Engine> engine_;
};

/// Minibatches as a Loader makes them, but in host memory, for programs with a runtime of their
/// own. Batches, state and errors are the same; see loader.h.
///
/// Thread-compatible: one consumer. Batches may outlive the loader.
///
///   HostLoader loader(source, cut_batch(*source, mesh, "data"), {.batch_size = 256}, {.seed = 1});
///   while (auto batch = loader.next()) { ... }
class HostLoader final : public LoaderRun {
 public:
  /// Throws as Loader's constructor does, and invalid_argument for a position that a mesh does not
  /// have.
  HostLoader(std::shared_ptr<const Source> source, const std::vector<FieldPlacement>& placements,
             LoaderOptions options, LoaderState state = {}, const HostLoaderOptions& host = {});

  /// As in Loader.
  std::optional<HostBatch> next();
  auto begin() { return detail::BatchIterator(*this); }
  std::default_sentinel_t end() const { return {}; }

  /// Waits, at most for `time`, until next() would return at once. True if it would. For callers
  /// that must check something else now and then.
  bool wait(std::chrono::milliseconds time);
};

}  // namespace shardwise
