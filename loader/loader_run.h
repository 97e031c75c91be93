#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "shardwise/loader/loader_options.h"
#include "shardwise/loader/loader_stats.h"

namespace shardwise {

namespace detail {
class Engine;
}

/// The run of batches that a Loader or a HostLoader delivers: where it stands and how it goes.
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
  /// invalid_argument if there is no such record or epoch.
  std::optional<BatchRow> step_of(std::int64_t record, std::int64_t epoch) const;

  LoaderStats stats() const;

  /// The records that BadRecords::substitute or mask have skipped.
  BadRecordLedger bad_records() const;

 protected:
  explicit LoaderRun(std::unique_ptr<detail::Engine> engine);
  ~LoaderRun();

  detail::Engine& engine() { return *engine_; }

 private:
  std::unique_ptr<detail::Engine> engine_;
};

}  // namespace shardwise
