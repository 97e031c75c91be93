#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "shardwise/shard/device_order.h"
#include "shardwise/shard/host/mutex.h"

namespace shardwise {

/// An activity of a thread, from one moment to another.
struct TimelineEvent {
  enum class Kind {
    compute,     ///< a device's part of a call or a fill
    collective,  ///< a device's part of a move between devices
    compile,     ///< a step is partitioned and planned, or its executable looked up
    read,        ///< a loader's thread reads a part of a batch
    wait,        ///< the job waits for its next batch, and takes it
  };

  Kind kind;
  std::string name;
  std::int64_t begin_ns, end_ns;  ///< since the timeline was made
  DeviceId device = -1;           ///< of compute and collective
  std::int64_t batch = -1;        ///< of read and wait
  int thread = -1;                ///< its number in this timeline, filled in by add()
};

/// "compute", "collective", ...
std::string_view name(TimelineEvent::Kind kind);

/// Records the activities of programs (DevicesOptions::timeline) and loaders (the same, or
/// HostLoaderOptions::timeline), on one clock. Recording an event takes some 100 ns. Thread-safe.
///
///   const auto timeline = std::make_shared<Timeline>();
///   Devices devices(8, {.timeline = timeline});
///   // ... a loader and a program on these devices, and then:
///   std::ofstream("trace.json") << to_trace_json(*timeline);
///   std::cout << to_string(step_times(*timeline));
class Timeline {
 public:
  /// Keeps the first `most_events`.
  explicit Timeline(std::size_t most_events = 1'000'000) : most_events_(most_events) {}

  /// Nanoseconds since it was made.
  std::int64_t now_ns() const;

  /// An event of the calling thread.
  void add(TimelineEvent event);

  /// The recorded events, in the order of recording.
  std::vector<TimelineEvent> events() const;

  /// The number of events beyond the most that it keeps.
  std::int64_t dropped() const;

 private:
  const std::size_t most_events_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();

  mutable Mutex mutex_;
  std::vector<TimelineEvent> events_ SHARDWISE_GUARDED_BY(mutex_);
  std::map<std::thread::id, int> threads_ SHARDWISE_GUARDED_BY(mutex_);
  std::int64_t dropped_ SHARDWISE_GUARDED_BY(mutex_) = 0;
};

/// Records its scope; without a timeline (null) it does nothing. Thread-compatible.
class TimelineScope {
 public:
  /// `name` must outlive the scope.
  TimelineScope(Timeline* timeline, TimelineEvent::Kind kind, std::string_view name,
                DeviceId device = -1)
      : timeline_(timeline),
        kind_(kind),
        name_(name),
        device_(device),
        begin_ns_(timeline == nullptr ? 0 : timeline->now_ns()) {}
  ~TimelineScope();
  TimelineScope(const TimelineScope&) = delete;
  TimelineScope& operator=(const TimelineScope&) = delete;

 private:
  Timeline* const timeline_;
  const TimelineEvent::Kind kind_;
  const std::string_view name_;
  const DeviceId device_;
  const std::int64_t begin_ns_;
};

/// In the Trace Event Format, which Perfetto and chrome://tracing show: a row for each thread.
/// (Source: "Trace Event Format", The Chromium Projects.)
std::string to_trace_json(const Timeline& timeline);

/// Breaks down the time of a step: from the delivery of its batch to that of the next one.
struct StepTimes {
  std::int64_t batch;
  double seconds = 0;
  double waited_seconds = 0;     ///< of it, for the next batch
  double computed_seconds = 0;   ///< of the rest, the share of computing in the devices' work
  double exchanged_seconds = 0;  ///< ... of collectives
  double compiled_seconds = 0;
  double other_seconds = 0;  ///< none of these: the job's own code

  /// The largest share: "loader", "compute", "collective", "compile" or "job".
  std::string_view bound() const;
};

/// One for each batch except the last, whose end is unknown. If devices work on several threads,
/// the time when any of them works counts; it is divided in proportion to the time of each kind.
std::vector<StepTimes> step_times(const Timeline& timeline);

/// "20 steps of 41.2 ms: compute 78 %, loader 12 %, collective 8 %, job 2 %; bound: 17 by compute,
/// 3 by loader"
std::string to_string(const std::vector<StepTimes>& steps);

}  // namespace shardwise
