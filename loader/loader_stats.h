#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/runtime/timeline.h"

namespace shardwise {

/// A part of the readers' work ("read", "decode", ...) and how long all of them were at it.
struct StageSeconds {
  std::string stage;
  double seconds = 0;
};

/// Waits and work since the start, in seconds and counts, to see what holds a job up.
struct LoaderStats {
  std::int64_t batches = 0;
  std::int64_t records = 0;            ///< of delivered batches, of all processes
  std::size_t bytes_placed = 0;        ///< written into buffers, replicas counted
  double seconds = 0;                  ///< since the loader was made
  double consumer_waited_seconds = 0;  ///< next() had to wait: the loader holds up the job
  double readers_waited_seconds = 0;   ///< the ring was full: the job holds up the loader
  double rows_per_second = 0;          ///< records / seconds
  double mean_ready_batches = 0;       ///< that were ready when next() was called
  int threads = 0;                     ///< that read

  /// Estimated from one ticket of work of every few, the largest first; without what a stage spends
  /// in stages of its own. Together they are the time that the readers were busy.
  std::vector<StageSeconds> stages;
};

/// One line that says what to mend first, as in "the readers: decode takes 71 % of their time; the
/// job waited 12.3 s of 40.0 s".
std::string bottleneck(const LoaderStats& stats);

/// A record that could not be read, and what was done about it.
struct BadRecord {
  std::int64_t batch, row, epoch, record;
  std::int64_t substitute;  ///< the record delivered instead; -1: its row is masked
  std::string message;

  bool operator==(const BadRecord&) const = default;
};

/// What was wrong in the batches delivered so far, among the rows that this process has a part of.
struct BadRecordLedger {
  std::int64_t count = 0;
  std::vector<BadRecord> first;  ///< of them, 1,000 at most, in order of delivery
};

/// A loader as it might have been.
struct ReplayOptions {
  int threads;   ///< that read
  int prefetch;  ///< batches held ready
};

/// How long the recorded run would have taken with other options, in seconds: each part of a batch
/// read, and each step of the job done, takes as long as it did, on as many threads as are asked
/// for. So it is right as far as there are cores, memory and disk for more threads. The timeline
/// must hold one run, from its first batch on, and nothing of it must have been dropped. Throws
/// invalid_argument where that is not so, or an option is below 1.
double replay_seconds(const Timeline& timeline, const ReplayOptions& options);

/// What would help, as the recorded run compares with what replays of it give: "2 more threads: 38
/// % faster; 2 more batches ahead: 1 % faster". Of threads beyond `cores`, those of the machine, it
/// promises nothing: a replay does not know what they would take from each other. Throws as
/// replay_seconds does.
std::string what_if(const Timeline& timeline, const ReplayOptions& recorded, int cores);

}  // namespace shardwise
