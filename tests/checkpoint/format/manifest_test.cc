#include "shardwise/checkpoint/detail/format/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "testing/hand_made_checkpoint.h"

namespace shardwise::detail {
namespace {

using nlohmann::json;

HandMadeCheckpoint small_checkpoint() {
  return HandMadeCheckpoint(
      {{.name = "w",
        .dtype = DType::f32,
        .shape = {10, 6},
        .pieces = {Box({0, 0}, {5, 6}), Box({5, 0}, {10, 6})},
        .data = counting_values(DType::f32, {10, 6}),
        .chunk = {3, 6},
        .codec = StoredCodec::zstd},
       {.name = "b/\"quoted\" \xc3\xa9",
        .dtype = DType::boolean,
        .shape = {},
        .pieces = {Box()},
        .data = counting_values(DType::boolean, {})},
       {.name = "none at all", .dtype = DType::i64, .shape = {3, 0}, .pieces = {}, .data = {}}},
      2);
}

TEST(PrintManifest, IsTheJsonOfTheFormatPage) {
  const HandMadeCheckpoint checkpoint = small_checkpoint();
  const std::string text = print_manifest(checkpoint.manifest);
  const json root = json::parse(text);
  EXPECT_EQ(root["format"], "shardwise-checkpoint");
  EXPECT_EQ(root["version"], 2);
  EXPECT_EQ(root["step"], 100);
  EXPECT_EQ(root["user"], json::object());
  ASSERT_EQ(root["tensors"].size(), 3u);
  const json& w = root["tensors"][2];
  EXPECT_EQ(w["name"], "w");
  EXPECT_EQ(w["dtype"], "f32");
  EXPECT_EQ(w["shape"], json::parse("[10,6]"));
  ASSERT_EQ(w["pieces"].size(), 2u);
  EXPECT_EQ(w["pieces"][1], json::parse(R"({"writer":1,"box":[[0,5],[0,6]]})"));
  const json& scalar = root["tensors"][0];
  EXPECT_EQ(scalar["dtype"], "bool");
  EXPECT_EQ(scalar["pieces"], json::parse(R"([{"writer":0,"box":[]}])"));
  EXPECT_EQ(root["tensors"][1]["pieces"], json::array());
  EXPECT_EQ(root["writers"], json::parse(R"({"count":2,"devices":2})"));
  EXPECT_EQ(root["meshes"], json::array());
  const FileEntry& file = checkpoint.manifest.files[1];
  ASSERT_EQ(root["files"].size(), 2u);
  EXPECT_EQ(root["files"][1], (json{file.bytes, file.data_end, to_hex(file.description_hash)}));
  EXPECT_EQ(root["index"]["name"], "index.h5");

  ASSERT_GT(text.size(), 49u);
  const std::string tail = text.substr(text.size() - 49);
  EXPECT_EQ(tail.substr(0, 14), ",\n\"checksum\":\"");
  EXPECT_EQ(tail.substr(46), "\"}\n");
  EXPECT_EQ(tail.substr(14, 32), root["checksum"]);
  EXPECT_EQ(with_checksum(text), text);
}

TEST(PrintManifest, GivesEqualBytesForEqualManifests) {
  EXPECT_EQ(print_manifest(small_checkpoint().manifest),
            print_manifest(small_checkpoint().manifest));
}

TEST(PrintManifest, KeepsTheUsersJsonByteByByte) {
  HandMadeCheckpoint checkpoint = small_checkpoint();
  for (const char* user :
       {"{}", "null", "\"a \\\" } ] , user\"", "[1, 2,\n 3]", "123456789012345678901234567890",
        "0.1000", "{ \"b\": {\"user\": [1]},\n  \"a\": \"x,y}\" }",
        "{\"tensors\":[],\"user\":0}"}) {
    SCOPED_TRACE(user);
    checkpoint.manifest.user_json = user;
    const std::string text = print_manifest(checkpoint.manifest);
    EXPECT_EQ(parse_manifest(text, "m").user_json, user);
  }
}

TEST(UserJson, ProblemsAreWhatTheManifestWouldBeRefusedFor) {
  EXPECT_EQ(user_json_problem("{\"a\": [1, 2.5, null]}"), "");
  EXPECT_EQ(user_json_problem(std::string(255, '[') + std::string(255, ']')), "");
  const struct {
    std::string text, message;
  } cases[] = {
      {"", "not JSON"},
      {"{", "not JSON"},
      {"{} {}", "not JSON"},
      {"{'a': 1}", "not JSON"},
      {"NaN", "not JSON"},
      {"// no\n{}", "not JSON"},
      {"\"\xff\"", "not JSON"},
      {"\xef\xbb\xbf{}", "byte order mark"},
      {"1e999", "beyond the range"},
      {"{\"a\":1,\"b\":{\"c\":1,\"c\":2}}", "same key twice"},
      {std::string(256, '[') + std::string(256, ']'), "nested deeper than 255"},
      {std::string(1'000'000, '['), "nested deeper than 255"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text.substr(0, 40));
    EXPECT_THAT(user_json_problem(c.text), testing::HasSubstr(c.message));
  }
}

TEST(TensorName, ProblemsAreNamed) {
  EXPECT_EQ(name_problem("layers/0/w \xc3\xa9\n"), "");
  EXPECT_EQ(name_problem(std::string(1024, 'x')), "");
  EXPECT_EQ(name_problem(""), "is empty");
  EXPECT_EQ(name_problem(std::string(1025, 'x')), "has 1025 bytes, needed is at most 1024");
  EXPECT_EQ(name_problem(std::string("a\0b", 3)), "has a NUL character");
  EXPECT_EQ(name_problem("a\xff"), "is not UTF-8");
  EXPECT_EQ(name_problem("\xed\xa0\x80"), "is not UTF-8");
}

}  // namespace
}  // namespace shardwise::detail
