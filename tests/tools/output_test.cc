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
            "\\u009b2J \\x9b2J \\x7f \\xe2\\x82");
  EXPECT_EQ(printable(std::string("a\0b\r", 4)), "a\\x00b\\x0d");
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("a\xe2\x80\xae"
                      "b\xe2\x80\xa8\xf3\xa0\x81\x81"),
            "a\\u202eb\\u2028\\U000e0041");
  EXPECT_EQ(printable("\xed\xa0\x80 \xe0\x80\x80 \xf4\x90\x80\x80"),
            "\\ud800 \\xe0\\x80\\x80 \\xf4\\x90\\x80\\x80")
      << "overlong forms and numbers beyond Unicode are no UTF-8";
}

TEST(OneLine, LetsNoNameBeginALine) {
  EXPECT_EQ(one_line("w\nfake\t1 \x1b[2J"), "w\\nfake\\t1 \\x1b[2J");
  EXPECT_EQ(one_line("\xc3\xa9"), "\xc3\xa9");
}

TEST(EscapedJson, ReadsBackToTheSameText) {
  const std::string json = R"({"a\n":")"
                           "\x7f\xc2\x9b\xe2\x80\xae\xf3\xa0\x81\x81\xc3\xa9"
                           R"("})";
  const std::string escaped = escaped_json(json);
  EXPECT_EQ(escaped, "{\"a\\n\":\"\\u007f\\u009b\\u202e\\udb40\\udc41\xc3\xa9\"}");
  EXPECT_EQ(nlohmann::json::parse(escaped), nlohmann::json::parse(json));
}

TEST(Wrapped, KeepsBlanksAndLongWords) {
  EXPECT_EQ(wrapped("  one two three", 9, 4), "  one two\n    three");
  EXPECT_EQ(wrapped("a longerthanthis b", 8, 0), "a\nlongerthanthis\nb");
  EXPECT_EQ(wrapped("", 8, 2), "");
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
