#include "shardwise/checkpoint/detail/json_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/errors.h"

namespace shardwise::detail {
namespace {

using testing::HasSubstr;

TEST(ParseJson, SaysInOneClauseWhatIsWrong) {
  const struct {
    std::string text;
    const char* message;
  } cases[] = {
      {"", "is not JSON: syntax error at byte 1"},
      {"{\"a\":1} x", "is not JSON: syntax error at byte"},
      {"\xef\xbb\xbf{}", "byte order mark"},
      {R"({"a":1,"b":{"c":1,"c":2}})", "the same key twice"},
      {R"([[[[]]]])", "is nested deeper than 3 levels"},
      {R"({"a":1e999})", "beyond the range of a double"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { parse_json(c.text, 3); }),
                HasSubstr(c.message))
        << c.text;
  }
  EXPECT_EQ(parse_json(R"([[{"a":1}]])", 3)[0][0]["a"], 1);
  EXPECT_EQ(parse_json(R"([{"a":1},{"a":2}])", 3).size(), 2u) << "one key in two objects";
}

// The text, not what it means: 2.50 stays 2.50, and what looks like a member inside is none.
TEST(RawMember, IsTheTextOfTheOutermostMember) {
  const struct {
    const char *text, *key, *value;
  } cases[] = {
      {R"({"a": 2.50 ,"b":1})", "a", "2.50"},
      {R"({"x":{"a":1},"a":2})", "a", "2"},
      {R"({"x":["a",{"a":1}],"a":[1, {"b":2}]})", "a", R"([1, {"b":2}])"},
      {R"({"x":"\"a\":3,","a":"}\"{"})", "a", R"("}\"{")"},
      {R"({"x":"a","a" : null
})",
       "a", "null"},
      {R"({"\u0061":1})", "a", ""},
      {R"({"b":1})", "a", ""},
      {R"({})", "a", ""},
  };
  for (const auto& c : cases) EXPECT_EQ(raw_member(c.text, c.key), c.value) << c.text;
}

TEST(JsonFields, NamesObjectAndKeyOfWhatDoesNotFit) {
  const nlohmann::json json = {{"n", -1},           {"big", 18446744073709551615u},
                               {"f", 1.5},          {"s", std::string(200, 'x')},
                               {"dims", {1, 2, 0}}, {"range", {5, 4}},
                               {"list", 3}};
  const JsonFields fields(json, "tensor \"w\" piece", 3);
  const struct {
    std::function<void()> run;
    const char* message;
  } cases[] = {
      {[&] { fields.any("no"); }, "tensor \"w\" piece 3: key \"no\" is missing"},
      {[&] { fields.integer("n"); }, "\"n\" is -1, must be 0 .. 2^63 - 1"},
      {[&] { fields.integer("big"); }, "\"big\" is 18446744073709551615"},
      {[&] { fields.integer("f"); }, "\"f\" holds 1.5, must be an integer"},
      {[&] { fields.integer("s"); }, "\"s\" holds a JSON string, must be an integer"},
      {[&] { fields.text("n"); }, "\"n\" is a JSON number, must be a string"},
      {[&] { fields.list("list"); }, "\"list\" is a JSON number, must be a list"},
      {[&] { fields.dims("dims", 1); }, "\"dims\" is 0, must be 1 .. 2^63 - 1"},
      {[&] { fields.range("range"); }, "\"range\" begins at 5 and ends at 4"},
      {[&] { fields.range("dims"); }, "\"dims\" must be made of pairs [begin,end]"},
      {[&] { fields.hash64("s"); }, "\"s\" is not 16 hex digits"},
      {[&] {
         fields.choice("s", {"a", "b"});
       },
       "xxx\".., known are a, b"},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(message_of(ErrorCode::corrupt, c.run), HasSubstr(c.message));
  }
  EXPECT_THAT(message_of(ErrorCode::corrupt, [] { JsonFields(nlohmann::json(1), "manifest"); }),
              HasSubstr("manifest: is a JSON number, must be an object"));
  EXPECT_EQ(fields.integer("n", -1), -1);
  EXPECT_EQ(fields.dims("dims", 0), Shape({1, 2, 0}));
}

}  // namespace
}  // namespace shardwise::detail
