#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/shard/error.h"

namespace shardwise {

/// A part of the readers' work ("read", "decode", ...) and the time that all readers together spent
/// on it.
struct StageSeconds {
  std::string stage;
  double seconds = 0;
};

/// Waits and work since the start, in seconds and counts, to see what slows a job down.
struct LoaderStats {
  std::int64_t batches = 0;
  std::int64_t records = 0;            ///< in delivered batches, over all processes
  std::size_t bytes_placed = 0;        ///< written into buffers, replicas counted
  double seconds = 0;                  ///< since the loader was made
  double consumer_waited_seconds = 0;  ///< next() waited: the loader slows the job
  double readers_waited_seconds = 0;   ///< the ring was full: the job slows the loader
  double rows_per_second = 0;          ///< records / seconds
  double mean_ready_batches = 0;       ///< batches ready when next() was called
  int threads = 0;                     ///< number of reader threads

  /// The largest first, estimated from one in several tickets of work; a stage's time excludes
  /// stages within it. Together they are the time that the readers were busy.
  std::vector<StageSeconds> stages;
};

/// One line that says what to improve first, such as "the readers: decode takes 71 % of their time;
/// the job waited 12.3 s of 40.0 s".
std::string bottleneck(const LoaderStats& stats);

/// A record that could not be read, and its replacement.
struct BadRecord {
  std::int64_t batch, row, epoch, record;
  std::int64_t substitute;  ///< the record delivered instead; -1: its row is masked
  std::string message;

  bool operator==(const BadRecord&) const = default;
};

/// The bad records in the batches delivered so far, among the rows that this process needs in
/// part or whole.
struct BadRecordLedger {
  std::int64_t count = 0;
  std::vector<BadRecord> first;  ///< the first, at most 1,000, in order of delivery
};

}  // namespace shardwise
