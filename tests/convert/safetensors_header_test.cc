#include "shardwise/convert/detail/safetensors/safetensors_header.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "shardwise/convert/detail/safetensors/safetensors_dtypes.h"
#include "testing/errors.h"

namespace shardwise::detail {
namespace {

using testing::HasSubstr;

// Derived from the format's description by hand.
TEST(SafetensorsHeader, IsReadAndWrittenAsTheFormatSays) {
  const std::string text =
      R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("n":{"dtype":"I8","shape":[],"data_offsets":[24,25]},)"
      R"("e":{"dtype":"BOOL","shape":[0,4],"data_offsets":[25,25]}})";
  const SafetensorsHeader header = parse_header(text, 25);
  ASSERT_EQ(header.tensors.size(), 3u);
  EXPECT_EQ(header.metadata, (StringMap{{"format", "pt"}}));
  EXPECT_EQ(header.tensors[0].name, "w");
  EXPECT_EQ(header.tensors[0].dtype, DType::f32);
  EXPECT_EQ(header.tensors[0].shape, (Shape{2, 3}));
  EXPECT_EQ(header.tensors[1].shape, Shape());
  EXPECT_EQ(header.tensors[1].begin, 24u);
  EXPECT_EQ(header.tensors[2].shape, (Shape{0, 4}));

  const std::string written = header_text(header.tensors, header.metadata);
  ASSERT_EQ(written.size() % 8, 0u);
  EXPECT_EQ(written.substr(0, 8), std::string("\xc8\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(written.size(), 8u + 200);
  EXPECT_EQ(written.substr(8, text.size()), text);
  EXPECT_EQ(written.find_first_not_of(' ', 8 + text.size()), std::string::npos);
}

TEST(SafetensorsHeader, TakesWhatOtherWritersWrite) {
  EXPECT_TRUE(parse_header("{}", 0).tensors.empty());
  EXPECT_TRUE(parse_header("{ \"__metadata__\" : { } } \n\t ", 0).tensors.empty());
  // Any order of tensors and of fields, escapes in names, tensors without elements between others.
  const auto header =
      parse_header(R"({"b":{"data_offsets":[4,6],"shape":[1],"dtype":"BF16"},)"
                   R"("":{"dtype":"F64","shape":[3,0,5],"data_offsets":[4,4]},)"
                   R"("\u00e4\ud83d\ude00/\"":{"dtype":"U16","shape":[2,1],"data_offsets":[0,4]}})",
                   6);
  EXPECT_EQ(header.tensors[0].dtype, DType::bf16);
  EXPECT_EQ(header.tensors[1].name, "");
  EXPECT_EQ(header.tensors[2].name, "\u00e4\U0001F600/\"");
}

struct HostileHeader {
  std::string text;
  std::uint64_t data_bytes;
  std::string part;  ///< of the message
  ErrorCode code = ErrorCode::corrupt;
};

std::string tensor_json(const std::string& fields) { return "{\"w\":{" + fields + "}}"; }

void expect_refused(const std::vector<HostileHeader>& cases) {
  for (const HostileHeader& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_THAT(message_of(c.code, [&] { parse_header(c.text, c.data_bytes); }), HasSubstr(c.part));
  }
}

TEST(SafetensorsHeader, RefusesWhatIsNotAHeader) {
  const std::string nested = "{\"w\":" + std::string(100'000, '[');
  expect_refused({
      {"", 0, "does not begin"},
      {" {}", 0, "does not begin"},
      {"\xef\xbb\xbf{}", 0, "does not begin"},
      {"[]", 0, "does not begin"},
      {"{", 0, "not JSON"},
      {"{}{}", 0, "not JSON"},
      {std::string("{}\0", 3), 0, "not JSON"},
      {"{\"w\"}", 0, "not JSON"},
      {"{\"w\":{\"dtype\":\"F32\",}}", 0, "not JSON"},
      {"{\"\xff\":{}}", 0, "not JSON"},
      {"{\"\\ud800\":{}}", 0, "not JSON"},
      {"{'w':{}}", 0, "not JSON"},
      {"{\"w\":1}", 0, "tensor \"w\": found a number, needed is an object with dtype"},
      {"{\"w\":null}", 0, "tensor \"w\": found null"},
      {"{\"w\":[]}", 0, "tensor \"w\": found a list"},
      {nested, 0, "tensor \"w\": found a list"},
      {"{\"__metadata__\":[]}", 0, "__metadata__: found a list, needed is an object of strings"},
      {"{\"__metadata__\":null}", 0, "__metadata__: found null"},
      {"{\"__metadata__\":{\"a\":1}}", 0, "__metadata__ \"a\": found a number, needed is a string"},
      {"{\"__metadata__\":{\"a\":{}}}", 0, "__metadata__ \"a\": found an object"},
      {"{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}", 0, "__metadata__ \"a\" is there twice"},
      {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "__metadata__ is there twice"},
  });
}

TEST(SafetensorsHeader, RefusesFieldsThatAreWrong) {
  const std::string rest = ",\"shape\":[1],\"data_offsets\":[0,4]";
  const std::string f32 = "\"dtype\":\"F32\"";
  std::string deep = "1";
  for (int i = 0; i < 16; ++i) deep += ",1";
  expect_refused({
      {tensor_json(""), 0, "tensor \"w\": dtype is missing"},
      {tensor_json(f32), 0, "tensor \"w\": shape is missing"},
      {tensor_json(f32 + ",\"shape\":[]"), 4, "tensor \"w\": data_offsets is missing"},
      {tensor_json(f32 + "," + f32 + rest), 4, "tensor \"w\": dtype is there twice"},
      {tensor_json(f32 + rest + ",\"shape\":[1]"), 4, "tensor \"w\": shape is there twice"},
      {tensor_json(f32 + rest + ",\"strides\":[1]"), 4, "tensor \"w\": unknown field \"strides\""},
      {tensor_json("\"dtype\":\"\"" + rest), 4, "tensor \"w\": dtype is empty"},
      {tensor_json("\"dtype\":32" + rest), 4, "tensor \"w\", dtype: found a number"},
      {tensor_json("\"dtype\":{}" + rest), 4, "tensor \"w\", dtype: found an object"},
      {tensor_json(f32 + ",\"shape\":\"1\""), 4, "tensor \"w\", shape: found a string"},
      {tensor_json(f32 + ",\"shape\":[-1]"), 4, "tensor \"w\", shape: found a negative number"},
      {tensor_json(f32 + ",\"shape\":[1.0]"), 4, "tensor \"w\", shape: found a number that is no"},
      {tensor_json(f32 + ",\"shape\":[1e400]"), 4, "not JSON"},
      {tensor_json(f32 + ",\"shape\":[[1]]"), 4, "tensor \"w\", shape: found a list"},
      {tensor_json(f32 + ",\"shape\":[9223372036854775808]"), 4,
       "tensor \"w\": shape has an extent of 9223372036854775808"},
      {tensor_json(f32 + ",\"shape\":[18446744073709551616]"), 4,
       "tensor \"w\", shape: found a number that is no integer, or too large"},
      {tensor_json(f32 + ",\"shape\":[" + deep + "],\"data_offsets\":[0,4]"), 4,
       "tensor \"w\": it has more than 16 dims", ErrorCode::unsupported},
      {tensor_json(f32 + ",\"shape\":[1],\"data_offsets\":[0]"), 4, "has not two integers"},
      {tensor_json(f32 + ",\"shape\":[1],\"data_offsets\":[]"), 4, "has not two integers"},
      {tensor_json(f32 + ",\"shape\":[1],\"data_offsets\":[0,4,4]"), 4, "more than two integers"},
      {tensor_json(f32 + ",\"shape\":[1],\"data_offsets\":4"), 4, "data_offsets: found a number"},
      {tensor_json(f32 + ",\"shape\":[1],\"data_offsets\":[0,\"4\"]"), 4,
       "data_offsets: found a string"},
  });
}

TEST(SafetensorsHeader, KeepsDTypesThatThisLibraryLacks) {
  for (const std::string dtype : {"F33", "f32", " "}) {
    const auto header = parse_header(
        tensor_json("\"dtype\":\"" + dtype + "\",\"shape\":[3,2],\"data_offsets\":[0,5]"), 5);
    EXPECT_EQ(header.tensors.at(0).foreign_dtype, dtype);
    EXPECT_EQ(header.tensors.at(0).shape, (Shape{3, 2}));
  }
  // Rows that end within a byte have no shape of bytes.
  const auto header =
      parse_header(tensor_json(R"("dtype":"F4","shape":[2,3],"data_offsets":[0,3])"), 3);
  EXPECT_EQ(header.tensors.at(0).foreign_dtype, "F4");
  expect_refused(
      {{tensor_json(R"("dtype":"F33","shape":[33],"data_offsets":[0,4])"), 4, "needed"},
       {tensor_json(R"("dtype":"F33","shape":[4294967296,4294967296],"data_offsets":[0,4])"), 4,
        "tensor \"w\": "}});
}

TEST(SafetensorsHeader, RefusesOffsetsThatAreNotEachByteOnce) {
  const auto tensor = [](const std::string& name, const std::string& shape,
                         const std::string& offsets) {
    return "\"" + name + "\":{\"dtype\":\"F32\",\"shape\":[" + shape + "],\"data_offsets\":[" +
           offsets + "]}";
  };
  const std::string first = "{" + tensor("a", "2", "0,8") + ",";
  expect_refused({
      {"{" + tensor("w", "1", "0,4") + "}", 3, "tensor \"w\": its bytes [0, 4) are not inside"},
      {"{" + tensor("w", "1", "4,0") + "}", 8, "tensor \"w\": its bytes [4, 0) are not inside"},
      {"{" + tensor("w", "1", "18446744073709551615,3") + "}", 8, "tensor \"w\": its bytes"},
      {"{" + tensor("w", "1", "0,18446744073709551615") + "}", 8, "are not inside"},
      {"{" + tensor("w", "1", "0,8") + "}", 8, "tensor \"w\": its bytes [0, 8) are 8, needed"},
      {"{" + tensor("w", "3", "0,8") + "}", 8, "needed for f32 [3] are 12"},
      {"{" + tensor("w", "0", "0,8") + "}", 8, "needed for f32 [0] are 0"},
      {"{" + tensor("w", "4294967296,4294967296", "0,8") + "}", 8, "tensor \"w\": "},
      {"{" + tensor("w", "9223372036854775807", "0,8") + "}", 8, "tensor \"w\": "},
      {first + tensor("b", "2", "4,12") + "}", 12,
       "tensor \"b\": its bytes [4, 12) overlap those of tensor \"a\""},
      {first + tensor("b", "2", "0,8") + "}", 8, "overlap"},
      {first + tensor("b", "0", "4,4") + "}", 8, "tensor \"b\": its bytes [4, 4) overlap"},
      {first + tensor("b", "1", "12,16") + "}", 16,
       "tensor \"b\": the bytes [8, 12) before it belong to no tensor"},
      {"{" + tensor("b", "1", "4,8") + "}", 8, "the bytes [0, 4) before it"},
      {"{" + tensor("a", "2", "0,8") + "}", 9, "the file's bytes [8, 9) of data belong to no"},
      {"{}", 1, "the file's bytes [0, 1) of data belong to no tensor"},
      {first + tensor("a", "1", "8,12") + "}", 12, "tensor \"a\": it is there twice"},
  });
}

TEST(SafetensorsHeaderNightly, TooLongOnesAreNotWritten) {
  const std::vector<SafetensorsEntry> tensors(
      1, {.name = std::string(kMostHeaderBytes, 'x'), .dtype = DType::u8, .shape = {0}});
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { header_text(tensors, {}); }),
              HasSubstr("safetensors allows 100000000"));
}

}  // namespace
}  // namespace shardwise::detail
