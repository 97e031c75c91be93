#include "output.h"

#include <gtest/gtest.h>

namespace shardwise::tools {
namespace {

TEST(Printable, LetsNoNameMoveTheCursor) {
  EXPECT_EQ(printable("w\x1b]0;title\x07"), "w\\x1b]0;title\\x07");
  EXPECT_EQ(printable("two\nlines\tand \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80"),
            "two\nlines\tand \xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80");
  EXPECT_EQ(printable("\xc2\x9b"
                      "2J \x9b"
                      "2J \x7f \xe2\x82"),
            "\\xc2\\x9b2J \\x9b2J \\x7f \\xe2\\x82");
  EXPECT_EQ(printable(std::string("a\0b\r", 4)), "a\\x00b\\x0d");
  EXPECT_EQ(printable(""), "");
}

TEST(HumanTime, HasTwoUnitsAtMost) {
  EXPECT_EQ(human_time(0.2), "0 s");
  EXPECT_EQ(human_time(59.4), "59 s");
  EXPECT_EQ(human_time(59.5), "1 min 0 s");
  EXPECT_EQ(human_time(125), "2 min 5 s");
  EXPECT_EQ(human_time(3780), "1 h 3 min");
}

TEST(Counted, HasNoSOfOne) {
  EXPECT_EQ(counted(0, "chunk"), "0 chunks");
  EXPECT_EQ(counted(1, "chunk"), "1 chunk");
  EXPECT_EQ(counted(2, "shard file"), "2 shard files");
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
