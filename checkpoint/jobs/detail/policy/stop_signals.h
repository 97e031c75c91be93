#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

namespace shardwise::jobs_detail {

/// Notes the first moment at which one of some signals came, instead of what the signals do
/// otherwise: that comes back when the last object that asks for a signal ends. Thread-safe.
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
  // Under the lock of all that are asked: the first of what was handed over, and the next of them.
  std::int64_t first_ = 0;
  StopSignals* next_ = nullptr;
  std::chrono::steady_clock::time_point made_ = std::chrono::steady_clock::now();
};

}  // namespace shardwise::jobs_detail
