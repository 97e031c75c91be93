#pragma once

#include <chrono>

namespace shardwise {

/// Seconds since it was made, by a clock that never goes back; for statistics only.
/// Thread-compatible.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace shardwise
