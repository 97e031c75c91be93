#include "shardwise/convert/detail/safetensors/safetensors_index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardwise/storage/detail/json_reader.h"
#include "testing/errors.h"

namespace shardwise::detail {
namespace {

TEST(SafetensorsIndex, OnlyTheWeightMapCounts) {
  const WeightMap expected{{"a", "x.safetensors"}, {"b", "y.safetensors"}};
  EXPECT_EQ(parse_index(R"({"weight_map": {"b": "y.safetensors", "a": "x.safetensors"}})"),
            expected);
  EXPECT_EQ(parse_index(
                R"({"metadata": {"total_size": 1.5, "x": [{"weight_map": {}}, null, true, -1, []]},
        "format": "pt", "n": 1, "l": [[], [1]],
        "weight_map": {"a": "x.safetensors", "b": "y.safetensors"}, "after": {}})"),
            expected);
  EXPECT_EQ(parse_index(R"({"weight_map":{}})"), WeightMap());
}

TEST(SafetensorsIndex, IsWrittenAsTransformersWritesIt) {
  const WeightMap map{{"a", "x.safetensors"}, {"b", "y.safetensors"}};
  const std::string text = index_text(map, 12);
  EXPECT_EQ(text,
            "{\n  \"metadata\": {\n    \"total_size\": 12\n  },\n  \"weight_map\": {\n"
            "    \"a\": \"x.safetensors\",\n    \"b\": \"y.safetensors\"\n  }\n}\n");
  EXPECT_EQ(parse_index(text), map);
}

TEST(SafetensorsIndex, RefusesAllElse) {
  struct Case {
    const char* text;
    const char* part;
  };
  const Case cases[] = {
      {"", "not JSON at its byte"},
      {"{", "not JSON"},
      {"{}x", "not JSON"},
      {"[]", "index: found a list, needed is an object"},
      {"1", "index: found a number"},
      {"{}", "it has no weight_map"},
      {"{\"metadata\":{\"weight_map\":{}}}", "it has no weight_map"},
      {"{\"weight_map\":[]}", "weight_map: found a list"},
      {"{\"weight_map\":\"x\"}", "weight_map: found a string"},
      {"{\"weight_map\":{},\"weight_map\":{}}", "weight_map is there twice"},
      {"{\"weight_map\":{\"w\":1}}", "tensor \"w\": found a number, needed is a file name"},
      {"{\"weight_map\":{\"w\":[\"x\"]}}", "tensor \"w\": found a list"},
      {"{\"weight_map\":{\"w\":{}}}", "tensor \"w\": found an object"},
      {"{\"weight_map\":{\"w\":\"x\",\"w\":\"x\"}}", "tensor \"w\": it is there twice"},
      {"{\"weight_map\":{\"w\":\"../x\"}}", "tensor \"w\": file \"../x\" is not a plain name"},
      {"{\"weight_map\":{\"w\":\"/etc/passwd\"}}", "file \"/etc/passwd\" is not a plain name"},
      {"{\"weight_map\":{\"w\":\"a/b\"}}", "is not a plain name"},
      {"{\"weight_map\":{\"w\":\"a\\\\b\"}}", "is not a plain name"},
      {"{\"weight_map\":{\"w\":\"a\\u0000b\"}}", "is not a plain name"},
      {"{\"weight_map\":{\"w\":\"\"}}", "is not a plain name"},
      {"{\"weight_map\":{\"w\":\"..\"}}", "is not a plain name"},
  };
  const std::string deep = R"({"metadata":)" + std::string(JsonReader::kMostNested, '[');
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { parse_index(deep); }),
              testing::HasSubstr("it is nested deeper than 256 levels at its byte"));
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { parse_index(c.text); }),
                testing::HasSubstr(c.part));
  }
}

}  // namespace
}  // namespace shardwise::detail
