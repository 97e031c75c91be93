#pragma once

#include <cstddef>
#include <functional>

namespace shardwise::detail {

/// Numbered jobs, each of which moves bytes to or from a disk and computes on them, by threads of
/// its own: while some wait for the disk, others compute. (oneTBB's workers must not wait.)
struct LaneWork {
  std::size_t jobs = 0;
  std::size_t lanes = 1;  ///< threads; 1: the caller's own

  /// Called once for each 0 <= job < jobs, begun in this order; `lane` < lanes says whose thread it
  /// is, and so which buffer it may use.
  std::function<void(std::size_t job, std::size_t lane)> run;

  /// Called by the caller's thread now and then, at last when all jobs have ended; may be null.
  std::function<void()> progress = nullptr;
};

/// Returns when all jobs have ended. Throws what the first job that failed threw, first by its
/// number and not by time, or what progress threw; later jobs are not begun then, and nothing is
/// under way any more.
void run_lanes(const LaneWork& work);

}  // namespace shardwise::detail
