#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <thread>
#include <vector>

#include "shardwise/loader/detail/engine/batch_plan.h"
#include "shardwise/loader/detail/engine/ring.h"
#include "shardwise/loader/detail/engine/row_writer.h"
#include "shardwise/loader/detail/engine/run_order.h"
#include "shardwise/loader/detail/engine/stage_clock.h"
#include "shardwise/loader/loader_options.h"
#include "shardwise/loader/loader_stats.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/runtime/timeline.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise::detail {

/// The memory for batches.
struct Home {
  IsHereOnMesh is_here;

  /// Allocates memory for a position of this process. Called by readers, one at a time.
  std::function<OwnedBytes(const Mesh& mesh, std::int64_t position, std::size_t bytes,
                           const std::string& label)>
      allocate;

  std::shared_ptr<Timeline> timeline = {};  ///< null: nothing is recorded
};

/// A run of batches, read ahead by its own threads: the common part of Loader and HostLoader;
/// loader.h describes it. Thread-compatible: one consumer.
class Engine {
 public:
  /// Throws as Loader's constructor does.
  Engine(std::shared_ptr<const Source> source, const std::vector<FieldPlacement>& placements,
         const LoaderOptions& options, const LoaderState& state, Home home, Renumber renumber = {});
  ~Engine();

  /// Begins to read ahead, unless that has begun; next() and wait() do so, too.
  void start();

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// The next batch, in the arrays of plan(). Throws corrupt if its samples do not match its
  /// numbers.
  std::optional<PendingBatch> next();

  /// As Ring::wait().
  bool wait(std::chrono::milliseconds time);

  const BatchPlan& plan() const { return plan_; }
  const RunOrder& order() const { return order_; }
  LoaderState state() const;
  const BadRecordLedger& bad_records() const { return bad_records_; }
  LoaderStats stats() const;

  /// As RunOrder::step_of(). Throws invalid_argument if the record or epoch does not exist.
  std::optional<BatchRow> step_of(std::int64_t record, std::int64_t epoch) const;

 private:
  void resume(const LoaderState& state);
  std::string describe_at(std::int64_t batch) const;
  void check_digest(std::int64_t end_number, const std::string& where) const;
  Ring::Options ring_options() const;
  PendingBatch begin(std::int64_t index) const;
  void begin_wait();
  void end_wait(std::int64_t batch);
  void read_tickets(const std::stop_token& stop);
  void count_stages(const StageClock& clock);

  const std::shared_ptr<const Source> source_;
  const LoaderOptions options_;
  const Home home_;
  const Renumber renumber_;
  const RunOrder order_;
  const BatchPlan plan_;
  const std::int64_t rows_per_ticket_;
  const Stopwatch clock_;

  LoaderState state_;  // without its stages; used by the consumer only, like the next members
  std::int64_t batches_ = 0, records_ = 0, calls_ = 0;
  std::size_t bytes_placed_ = 0;
  BadRecordLedger bad_records_;
  std::exception_ptr lost_;                       // says that delivered samples differ
  std::optional<std::int64_t> waiting_since_ns_;  // on the timeline

  mutable Mutex stages_mutex_;
  std::vector<StageSeconds> stages_ SHARDWISE_GUARDED_BY(stages_mutex_);  // of sampled tickets
  std::int64_t sampled_tickets_ SHARDWISE_GUARDED_BY(stages_mutex_) = 0;
  std::atomic<std::int64_t> tickets_{0};

  std::optional<Ring> ring_;
  std::vector<std::jthread> readers_;
};

}  // namespace shardwise::detail
