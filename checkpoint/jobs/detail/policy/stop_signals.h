#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace shardwise::jobs_detail {

/// Notes when the first of some signals came, in place of the signals' own actions: an action is
/// restored when the last object that asks for its signal ends. Thread-safe.
class StopSignals {
 public:
  /// Throws invalid_argument for a number that is no signal that can be handled.
  explicit StopSignals(const std::vector<int>& signals);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  bool empty() const { return signals_.empty(); }

  /// How long ago the first of them came; absent: none has come since this was made.
  std::optional<std::chrono::nanoseconds> age() const;

 private:
  void take(int signal, std::int64_t time);

  std::vector<int> signals_;
  // Under the lock of all objects: the first signal handed over, and the next object.
  std::int64_t first_ = 0;
  StopSignals* next_ = nullptr;
  std::chrono::steady_clock::time_point made_ = std::chrono::steady_clock::now();
};

}  // namespace shardwise::jobs_detail
