#include "shardwise/loader/detail/engine/stage_clock.h"

#include <string_view>

namespace shardwise::detail {

// The time since the last event belongs to the innermost stage.
void StageClock::charge() {
  const Clock::time_point now = Clock::now();
  if (depth_ > 0 && depth_ <= kMostNested && open_[depth_ - 1] < kMostStages) {
    totals_[open_[depth_ - 1]].nanoseconds +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(now - last_).count();
  }
  last_ = now;
}

void StageClock::enter(const char* stage) {
  charge();
  if (++depth_ > kMostNested) return;
  std::size_t number = 0;
  while (number < count_ && totals_[number].stage != stage &&
         std::string_view(totals_[number].stage) != stage) {
    ++number;
  }
  if (number == count_ && count_ < kMostStages) totals_[count_++] = {stage, 0};
  open_[depth_ - 1] = number;
}

void StageClock::leave() {
  charge();
  --depth_;
}

}  // namespace shardwise::detail
