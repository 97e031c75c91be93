#include "output.h"

#include <gtest/gtest.h>

namespace shardwise::tools {
namespace {

TEST(HumanBytes, HasTheLargestUnitBelow) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(std::size_t{1} << 50), "1.00 PiB");
}

TEST(HumanTime, HasTwoUnitsAtMost) {
  EXPECT_EQ(human_time(0.2), "0 s");
  EXPECT_EQ(human_time(59.4), "59 s");
  EXPECT_EQ(human_time(59.5), "1 min 0 s");
  EXPECT_EQ(human_time(125), "2 min 5 s");
  EXPECT_EQ(human_time(3780), "1 h 3 min");
}

TEST(ProgressText, SaysHowMuchIsDoneAndHowLongTheRestTakes) {
  const std::size_t mib = std::size_t{1} << 20;
  EXPECT_EQ(progress_text("reshard", {72 * mib, 100 * mib}, 36),
            "reshard: 72 % of 100.00 MiB, 2.00 MiB/s, 14 s left");
  EXPECT_EQ(progress_text("verify", {0, 100 * mib}, 2), "verify: 0 % of 100.00 MiB, 0 B/s");
  EXPECT_EQ(progress_text("verify", {mib, mib}, 2),
            "verify: 100 % of 1.00 MiB, 512.00 KiB/s, 0 s left");
}

}  // namespace
}  // namespace shardwise::tools
