#pragma once

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace shardwise {

/// Has one target run as long as it lives, then Highway's choice again.
class OnlyTarget {
 public:
  explicit OnlyTarget(std::int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ~OnlyTarget() {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().DeInit();
  }
  OnlyTarget(const OnlyTarget&) = delete;
  OnlyTarget& operator=(const OnlyTarget&) = delete;
};

/// Calls body once for each of the versions of a loop that this processor can run; Highway would
/// pick one of them.
inline void on_each_target(const std::function<void()>& body) {
  const std::vector<std::int64_t> targets = hwy::SupportedAndGeneratedTargets();
#if HWY_ARCH_X86_64
  EXPECT_GT(targets.size(), 1u) << "plain code and one kind of vectors at least";
#endif
  for (const std::int64_t target : targets) {
    SCOPED_TRACE(hwy::TargetName(target));
    const OnlyTarget only(target);
    body();
  }
}

}  // namespace shardwise
