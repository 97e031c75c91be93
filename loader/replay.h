#pragma once

#include <string>

#include "shardwise/runtime/timeline.h"

namespace shardwise {

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
