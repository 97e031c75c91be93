#pragma once

#include <algorithm>
#include <chrono>

namespace shardwise::detail {

using Time = std::chrono::steady_clock::time_point;

inline Time after(std::chrono::milliseconds time) {
  return std::chrono::steady_clock::now() + time;
}

/// The slices of a wait, of 10 ms at first and then longer, up to a second: between them a thread
/// checks the other ranks' progress.
class Wait {
 public:
  explicit Wait(Time end) : end_(end) {}

  bool is_over() const { return std::chrono::steady_clock::now() >= end_; }

  std::chrono::milliseconds next() {
    using std::chrono::milliseconds;
    const auto left = std::chrono::ceil<milliseconds>(end_ - std::chrono::steady_clock::now());
    const milliseconds part = std::clamp(left, milliseconds(0), part_);
    part_ = std::min(2 * part_, milliseconds(1000));
    return part;
  }

 private:
  Time end_;
  std::chrono::milliseconds part_{10};
};

}  // namespace shardwise::detail
