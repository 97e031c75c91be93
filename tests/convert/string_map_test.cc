#include "shardwise/convert/detail/string_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/errors.h"

namespace shardwise::detail {
namespace {

TEST(StringMap, ReadsObjectsOfStringsAlone) {
  EXPECT_EQ(parse_string_map("{}"), StringMap());
  EXPECT_EQ(parse_string_map(R"( {"b": "1", "a": "\u00e4\n"} )"),
            (StringMap{{"b", "1"}, {"a", "\u00e4\n"}}));
  for (const char* json : {"", "[]", "null", "\"a\"", "{\"a\":1}", "{\"a\":{}}", "{\"a\":[]}",
                           "{\"a\":\"1\",\"a\":\"1\"}", "{\"a\":\"1\"}x", "{\"a\":null}", "{"}) {
    EXPECT_EQ(parse_string_map(json), std::nullopt) << json;
  }
}

TEST(StringMap, ReadsTheOnlyMemberOfAnObject) {
  EXPECT_EQ(parse_string_map(R"({"m": {"a": "1"}})", "m"), (StringMap{{"a", "1"}}));
  EXPECT_EQ(parse_string_map(R"({"m": {}})", "m"), StringMap());
  for (const char* json :
       {"{}", "{\"m\":\"1\"}", "{\"n\":{}}", "{\"m\":{},\"n\":{}}", "{\"m\":{},\"m\":{}}",
        "{\"m\":{\"a\":{}}}", "{\"m\":{\"a\":1}}", "{\"m\":{},\"n\":\"1\"}", "[{\"m\":{}}]"}) {
    EXPECT_EQ(parse_string_map(json, "m"), std::nullopt) << json;
  }
}

// Expected texts were written by the safetensors library 0.8.
TEST(StringMap, IsWrittenAsTheLibraryWritesIt) {
  EXPECT_EQ(to_json(StringMap{{"z", "1"}, {"a", std::string("\0", 1)}}),
            R"({"z":"1","a":"\u0000"})");
  EXPECT_EQ(to_json(std::string_view("a\x01\x7f\u2028/\"\\\u00e9\U0001F600\b\f\n\r\t")),
            "\"a\\u0001\x7f\u2028/\\\"\\\\\u00e9\U0001F600\\b\\f\\n\\r\\t\"");
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { to_json(std::string_view("a\xff")); }),
              testing::HasSubstr("write a safetensors header: found \"a\\xff\", needed UTF-8"));
}

TEST(StringMap, UserDataComeBack) {
  for (const char* user_json : {"{}", "{\"lr\": 0.1}", "7", "\"text\"", "[1, {\"a\": \"b\"}]",
                                "{\"safetensors_metadata\":{\"format\":\"pt\",\"a\":\"1\"}}"}) {
    const StringMap metadata = metadata_of(user_json);
    const auto again = parse_string_map(user_json_of(metadata), "safetensors_metadata");
    if (again) {
      EXPECT_EQ(*again, metadata);
    } else {
      EXPECT_EQ(user_json_of(metadata), user_json);
    }
  }
  EXPECT_EQ(metadata_of("{}"), StringMap());
  EXPECT_EQ(metadata_of("{\"lr\": 0.1}"), (StringMap{{"user", "{\"lr\": 0.1}"}}));
}

TEST(StringMap, OnlyOurKeyIsUserData) {
  EXPECT_EQ(user_json_of({}), "{}");
  EXPECT_EQ(user_json_of({{"user", "{\"a\": 1}"}}), "{\"a\": 1}");
  EXPECT_EQ(user_json_of({{"user", "{\"a\": 1}"}, {"format", "pt"}}), "{\"a\": 1}");
  EXPECT_EQ(user_json_of({{"user", "alice"}}), R"({"safetensors_metadata":{"user":"alice"}})");
  EXPECT_EQ(user_json_of({{"user", "1"}, {"b", "2"}}),
            R"({"safetensors_metadata":{"user":"1","b":"2"}})");
  EXPECT_EQ(user_json_of({{"format", "pt"}}), R"({"safetensors_metadata":{"format":"pt"}})");
}

}  // namespace
}  // namespace shardwise::detail
