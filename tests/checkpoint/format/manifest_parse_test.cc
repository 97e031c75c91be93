#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/detail/format/manifest.h"
#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/test_data.h"

namespace shardwise::detail {
namespace {

/// Tensors "a" (f32 [4, 4] in two pieces) and "b" (u8 [3]).
std::string valid_text() {
  static const std::string text =
      print_manifest(HandMadeCheckpoint({{.name = "a",
                                          .shape = {4, 4},
                                          .pieces = {Box({0, 0}, {4, 2}), Box({0, 2}, {4, 4})},
                                          .data = counting_values(DType::f32, {4, 4}),
                                          .chunk = {2, 2},
                                          .codec = StoredCodec::zstd},
                                         {.name = "b",
                                          .dtype = DType::u8,
                                          .shape = {3},
                                          .pieces = {Box({0}, {3})},
                                          .data = counting_values(DType::u8, {3})}})
                         .manifest);
  return text;
}

std::string refused(const std::string& text, ErrorCode code = ErrorCode::corrupt) {
  return message_of(code, [&] { parse_manifest(text, "dir/manifest.json"); });
}

TEST(ParseManifest, GivesBackWhatWasPrinted) {
  const Manifest manifest = parse_manifest(valid_text(), "m");
  EXPECT_EQ(manifest.step, 100);
  EXPECT_EQ(manifest.id, "0123456789abcdef0123456789abcdef");
  ASSERT_EQ(manifest.tensors.size(), 2u);
  EXPECT_EQ(manifest.tensors[0].listed[1].box, Box({0, 2}, {4, 4}));
  EXPECT_EQ(manifest.tensors[1].dtype, DType::u8);
  EXPECT_EQ(manifest.files[0].name, "shards-00000-of-00001.h5");
  EXPECT_EQ(print_manifest(manifest), valid_text());
}

TEST(ParseManifest, ReportsTheFirstOfManyTensorsThatIsWrong) {
  Manifest manifest = parse_manifest(valid_text(), "m");
  manifest.tensors.clear();
  for (int i = 0; i < 3000; ++i) {
    manifest.tensors.push_back({.name = std::to_string(10'000 + i), .shape = {i, 0}});
  }
  const std::string good = print_manifest(manifest);
  manifest.tensors[1700].listed = {{7, Box({0, 0}, {1, 0})}};
  manifest.tensors[2900].listed = {{8, Box({0, 0}, {1, 0})}};
  EXPECT_EQ(print_manifest(parse_manifest(good, "m")), good);
  EXPECT_THAT(refused(print_manifest(manifest)),
              testing::HasSubstr("tensor \"11700\": piece [0:1, 0:0] has writer 7"));
}

TEST(ParseManifest, TakesKeysInAnyOrderAndIgnoresUnknownOnes) {
  std::string text = valid_text();
  text = manifest_with(text, "\"step\":100,", "\"minor\":0,");
  text = manifest_with(
      text, "\"index\":{\"name\":\"index.h5\"",
      "\"step\":100, \"new key\":[{\"x\":null}],\n\t\"index\":{\"y\":1,\"name\":\"index.h5\"");
  text = manifest_with(text, "\"dtype\":\"f32\"", "\"dtype\":\"f32\",\"cousin\":\"tensor\"");
  text = manifest_with(text, "\"writer\":0", "\"parity\":7,\"writer\":0");
  text = manifest_with(text, "\"writers\":{", "\"writers\":{\"z\":[],");
  EXPECT_EQ(print_manifest(parse_manifest(text, "m")), valid_text());
}

TEST(ParseManifest, RefusesAnotherVersionAsUnsupported) {
  for (const char* version : {"1", "3", "0", "-1", "1000000"}) {
    const auto text =
        manifest_with(valid_text(), "\"version\":2", std::string("\"version\":") + version);
    EXPECT_EQ(refused(text, ErrorCode::unsupported),
              std::string("read manifest dir/manifest.json: found format version ") + version +
                  ", needed is 2");
  }
  // Whatever else another version has or lacks.
  for (const char* version : {"1", "3"}) {
    const auto text =
        with_checksum(std::string("{\"format\":\"shardwise-checkpoint\",\"version\":") + version);
    EXPECT_THAT(refused(text, ErrorCode::unsupported),
                testing::HasSubstr(std::string("format version ") + version));
  }
}

TEST(ParseManifest, ComparesTheChecksumBeforeItParses) {
  for (const char* text : {"", "{}", "not JSON at all", "{\"checksum\":\"\"}\n"}) {
    EXPECT_THAT(refused(text), testing::HasSubstr("does not end in its checksum")) << text;
  }
  std::string text = valid_text();
  text[30] ^= 1;
  EXPECT_THAT(refused(text), testing::HasSubstr("it states"));
}

TEST(ParseManifest, FindsEveryFlippedBitAndEveryTruncation) {
  const std::string good = valid_text();
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ 1 << bit % 8);
    EXPECT_THROW(parse_manifest(bad, "m"), Error) << "bit " << bit;
  }
  for (std::size_t size = 0; size < good.size(); ++size) {
    EXPECT_THROW(parse_manifest(good.substr(0, size), "m"), Error) << size;
  }
}

// One line per rule of the format page: the text, its replacement, and the message.
struct Hostile {
  std::string_view from, to, message;
};

constexpr Hostile kHostile[] = {
    // the whole
    {"{\"format\":\"shardwise-checkpoint\"", "{\"format\":\"other\"", "\"format\" is \"other\""},
    {"\"format\":\"shardwise-checkpoint\",", "", "key \"format\" is missing"},
    {"\"version\":2", "\"version\":\"2\"", "\"version\" is not an integer"},
    {"\"version\":2", "\"version\":2.0", "\"version\" is not an integer"},
    {"\"version\":2,", "", "key \"version\" is missing"},
    {"\"version\":2", "\"version\":2,\"minor\":-1", "\"minor\" is -1, needed is 0"},
    {"\"version\":2", "\"version\":2,\"minor\":\"1\"",
     "\"minor\" holds a JSON string, needed is an integer"},
    {"\"version\":2", "\"version\":2,\"version\":1", "same key twice"},
    {"{\"format\"", "\xef\xbb\xbf{\"format\"", "byte order mark"},
    {"{\"format\"", "[{\"format\"", "not JSON"},
    {"\"user\":{}", "\"user\":NaN", "not JSON"},
    {"\"user\":{}", "\"user\":1e999", "beyond the range"},
    {"\"user\":{}", "\"user\":\"\xff\"", "not JSON"},
    {"\"user\":{}", "\"user\":{\"a\":1,\"a\":1}", "same key twice"},
    {"\"user\":{},", "", "key \"user\" is missing"},
    {"\"id\":\"0123456789abcdef0123456789abcdef\"", "\"id\":\"0123\"", "\"id\" is not 32 hex"},
    {"\"id\":\"0123456789abcdef", "\"id\":\"0123456789ABCDEF", "\"id\" is not 32 hex"},
    {"\"step\":100", "\"step\":-1", "\"step\" is -1, needed is 0"},
    {"\"step\":100", "\"step\":1e2", "\"step\" holds 100.0, needed is an integer"},
    {"\"step\":100", "\"step\":\"100\"", "\"step\" holds a JSON string, needed is an integer"},
    {"\"step\":100", "\"step\":9223372036854775808", "\"step\" is 9223372036854775808, needed is"},
    {"\"step\":100", "\"step\":99999999999999999999", "needed is an integer below 2^63"},
    {"\"tensors\":[", "\"tensors\":{},\"x\":[", "\"tensors\" is a JSON object, needed is a list"},
    {"\"tensors\":[", "\"tensors\":[7,", "tensor 0: is a JSON number, needed is an object"},
    {"\"files\":[", "\"files\":null,\"x\":[", "\"files\" is a JSON null, needed is a list"},
    {"\"index\":{\"name\":\"index.h5\"", "\"index\":{\"name\":\"other.h5\"", "known are index.h5"},
    {"\"index\":{\"name\":\"index.h5\",\"bytes\":72",
     "\"index\":{\"name\":\"index.h5\",\"bytes\":-2", "index: \"bytes\" is -2"},
    // tensors
    {"\"name\":\"a\"", "\"name\":\"\"", "tensor 0: its name is empty"},
    {"\"name\":\"a\"", "\"name\":\"a\\u0000b\"", "tensor 0: its name has a NUL"},
    {"\"name\":\"a\"", "\"name\":3", "\"name\" is a JSON number, needed is a string"},
    {"\"name\":\"a\"", "\"name\":\"b\"", "tensor \"b\" follows \"b\""},
    {"\"name\":\"a\"", "\"name\":\"c\"", "tensor \"b\" follows \"c\""},
    {"\"dtype\":\"f32\"", "\"dtype\":\"float32\"", "tensor \"a\": \"dtype\" is \"float32\""},
    {"\"dtype\":\"f32\"", "\"dtype\":\"f128\"", "tensor \"a\": \"dtype\" is \"f128\""},
    {"\"shape\":[4,4]", "\"shape\":[4,-4]", "tensor \"a\": \"shape\" is -4"},
    {"\"shape\":[4,4]", "\"shape\":[4,4.0]", "tensor \"a\": \"shape\" holds 4.0"},
    {"\"shape\":[4,4]", "\"shape\":[4,true]", "tensor \"a\": \"shape\" holds a JSON boolean"},
    {"\"shape\":[4,4]", "\"shape\":\"4,4\"", "tensor \"a\": \"shape\" is a JSON string"},
    {"\"shape\":[4,4]", "\"shape\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]",
     "has 17 entries, needed is at most 16"},
    {"\"shape\":[4,4]", "\"shape\":[4294967296,4294967296]", "more than 2^63 - 1 elements"},
    {"\"shape\":[4,4]", "\"shape\":[4294967296,2147483647]", "more than 2^64 - 1 bytes"},
    {"\"shape\":[4,4]", "\"shape\":[0,4]", "tensor \"a\": box [0:4, 0:2] leaves the tensor's"},
    {"\"shape\":[4,4]", "\"shape\":[5,4]", "tensor \"a\": cover the tensor: element"},
    {"\"shape\":[4,4]", "\"shape\":[3,4]", "leaves the tensor's shape [3, 4]"},
    {"\"pieces\":[", "\"pieces\":[3,", "tensor \"a\" piece 0: is a JSON number"},
    {"\"pieces\":[", "\"pieces\":[],\"x\":[", "tensor \"a\": cover the tensor: element"},
    {"\"pieces\":[", "\"pieces\":7,\"x\":[", "tensor \"a\": \"pieces\" is a JSON number"},
    {"\"pieces\":[", "\"old\":[", "tensor \"a\": key \"mesh\" is missing"},
    // pieces
    {"[[0,4],[0,2]]", "[[0,4],[0,3]]", "tensor \"a\": cover the tensor: element"},
    {"[[0,4],[0,2]]", "[[0,4],[0,5]]", "tensor \"a\": box [0:4, 0:5] leaves the tensor's shape"},
    {"[[0,4],[0,2]]", "[[0,4],[2,2]]", "tensor \"a\": box [0:4, 2:2] is empty"},
    {"[[0,4],[0,2]]", "[[0,4],[2,0]]", "piece 0: \"box\" begins at 2 and ends at 0"},
    {"[[0,4],[0,2]]", "[[0,4],[-1,2]]", "piece 0: \"box\" is -1"},
    {"[[0,4],[0,2]]", "[[0,4]]", "piece 0: \"box\" has 1 dims, the tensor has 2"},
    {"[[0,4],[0,2]]", "[[0,4],[0,2,4]]", "needed are pairs"},
    {"[[0,4],[0,2]]", "[[0,4],2]", "needed are pairs"},
    {"\"writer\":0", "\"writer\":1", "tensor \"a\": piece [0:4, 0:2] has writer 1, needed is 0"},
    {"\"writer\":0", "\"writer\":-1", "piece 0: \"writer\" is -1"},
    {"\"writer\":0", "\"writer\":\"0\"", "piece 0: \"writer\" holds a JSON string"},
    {"\"writer\":0,", "", "piece 0: key \"writer\" is missing"},
    // files
    {"\"files\":[", "\"files\":[null,", "\"files\" has 2 entries, needed is one for each of 1"},
    {"\"files\":[\n[", "\"files\":[\n{},[", "\"files\" has 2 entries"},
    {"\"files\":[\n[", "\"files\":[\n[-", "file 0 is not [bytes,"},
    {"\"files\":[\n[", "\"files\":[\n[0", "not JSON"},
};

TEST(ParseManifest, RefusesWhatBreaksARule) {
  for (const Hostile& c : kHostile) {
    SCOPED_TRACE(testing::Message() << c.from << "  ->  " << c.to);
    const std::string message = refused(manifest_with(valid_text(), c.from, c.to));
    EXPECT_THAT(message, testing::HasSubstr(std::string(c.message)));
    EXPECT_THAT(message, testing::StartsWith("read manifest dir/manifest.json: "));
  }
}

// A key that a later minor version adds is ignored.
TEST(ParseManifest, TakesEveryMinorVersion) {
  Manifest manifest = parse_manifest(valid_text(), "m");
  EXPECT_EQ(manifest.minor, 0);
  EXPECT_EQ(valid_text().find("minor"), std::string::npos);
  manifest.minor = 7;
  const std::string later = print_manifest(manifest);
  EXPECT_EQ(parse_manifest(later, "m"), manifest);
  EXPECT_EQ(parse_manifest(manifest_with(later, "\"step\"", "\"new\":{},\"step\""), "m"), manifest);
}

// The format page's, as a reader of it would type it in.
TEST(ParseManifest, TakesTheExampleOfTheFormatPage) {
  const std::vector<std::byte> page = file_bytes(test_data("../../docs/checkpoint_format.md"));
  std::string text(reinterpret_cast<const char*>(page.data()), page.size());
  const std::string begin = "```json\n";
  text = text.substr(text.find(begin) + begin.size());
  const Manifest manifest = parse_manifest(text.substr(0, text.find("```")), "m");
  EXPECT_EQ(manifest.tensors.at(0).shape, (Shape{2, 3}));

  const std::vector<std::int32_t> values{0, 1, 2, 3, 4, 5};
  const auto chunk = std::as_bytes(std::span(values));
  const ChunkRecord record{
      .address = 4096, .stored_bytes = 24, .hash = hash64(chunk.data(), chunk.size())};
  EXPECT_EQ(to_hex(record.hash), "5932abeb2d2d5854");
  FileEntry file = manifest.files.at(0);
  file.data_begin = 4096;
  file.table_address = 8192;
  file.chunks = 1;
  file.table_hash = hash64(reinterpret_cast<const std::byte*>(&record), sizeof record);
  file.decoded_address = 12472;
  file.decoded_hash = hash64(reinterpret_cast<const std::byte*>(&record.hash), sizeof record.hash);
  file.pieces_address = 12480;
  const PieceEntry piece{.box = Box({0, 0}, {2, 3}), .chunk = {2, 3}};
  std::vector<TensorEntry> tensors = manifest.tensors;
  tensors[0].pieces = {piece};
  const std::vector<std::uint64_t> words = describe_pieces(tensors, std::vector{PieceId{0, 0}});
  EXPECT_THAT(words, testing::ElementsAre(0x58f865db9b0b5348, 0, 2, 0, 0, 2, 3, 2, 3));
  file.pieces_words = words.size();
  file.pieces_hash = hash64(std::as_bytes(std::span(words)).data(), 8 * words.size());
  file.structure_hash = {.high = 0xccb8f2301253ce23, .low = 0x7574b73be5a86de5};
  file.stored_bytes = 24;
  const auto description = describe_file(file);
  const auto bytes = std::as_bytes(std::span(description));
  EXPECT_EQ(hash128(bytes.data(), bytes.size()), file.description_hash);
}

TEST(ParseManifest, IsNotImpressedByDepthOrLength) {
  const std::string deep(1'000'000, '[');
  EXPECT_THAT(refused(manifest_with(valid_text(), "\"user\":{}", "\"user\":" + deep)),
              testing::HasSubstr("nested deeper than 256"));
  const std::string closed = deep + std::string(deep.size(), ']');
  EXPECT_THAT(refused(manifest_with(valid_text(), "\"user\":{}", "\"user\":" + closed)),
              testing::HasSubstr("nested deeper than 256"));
  const std::string longest(200'000, 'x');
  EXPECT_LT(
      refused(manifest_with(valid_text(), "\"dtype\":\"f32\"", "\"dtype\":\"" + longest + "\""))
          .size(),
      400u);
}

}  // namespace
}  // namespace shardwise::detail
