#include "shardwise/storage/utf8.h"

#include <gtest/gtest.h>

namespace shardwise {
namespace {

std::string json(std::string_view text) {
  std::string out = "x";
  append_json(out, text);
  return out;
}

// The bytes that manifests have had from the first one on.
TEST(JsonText, EscapesWhatJsonCannotHold) {
  EXPECT_EQ(json(""), "x\"\"");
  EXPECT_EQ(json("layer/0 w~"), "x\"layer/0 w~\"");
  EXPECT_EQ(json("a\"b\\c/"), R"(x"a\"b\\c/")");
  EXPECT_EQ(json("\b\f\n\r\t"), R"(x"\b\f\n\r\t")");
  EXPECT_EQ(json(std::string_view("\0\x1f\x0b\x7f", 4)), "x\"\\u0000\\u001f\\u000b\x7f\"");
  EXPECT_EQ(json("\u00fc\u00ef"), "x\"\u00fc\u00ef\"");
}

TEST(Shown, IsOfOneLineAndShort) {
  EXPECT_EQ(shown("a\nb\x1b"), R"("a\nb\x1b")");
  EXPECT_EQ(shown(std::string(100, 'x')), '"' + std::string(100, 'x') + '"');
  EXPECT_EQ(shown(std::string(101, 'x')), '"' + std::string(100, 'x') + "\"..");
}

}  // namespace
}  // namespace shardwise
