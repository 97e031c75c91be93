#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/file_description.h"
#include "shardwise/checkpoint/detail/format/manifest.h"
#include "testing/change_piece.h"
#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/listed_manifest.h"
#include "testing/test_data.h"

namespace shardwise::detail {
namespace {

/// Tensors "a" (f32 [4, 4] in two zstd pieces of two chunks) and "b" (u8 [3], contiguous).
std::string valid_text() {
  static const std::string text = print_listed_manifest(
      HandMadeCheckpoint({{.name = "a",
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
  EXPECT_EQ(manifest.tensors[0].pieces[1].box, Box({0, 2}, {4, 4}));
  EXPECT_EQ(manifest.tensors[0].pieces[1].first_chunk, 2);
  EXPECT_EQ(manifest.tensors[0].pieces[1].layout, Layout::chunked);
  EXPECT_EQ(manifest.tensors[0].pieces[1].codec, StoredCodec::zstd);
  EXPECT_EQ(manifest.tensors[1].dtype, DType::u8);
  EXPECT_EQ(manifest.files[0].chunks, 5);
  EXPECT_EQ(print_listed_manifest(manifest), valid_text());
}

TEST(ParseManifest, ReportsTheFirstOfManyTensorsThatIsWrong) {
  Manifest manifest = parse_manifest(valid_text(), "m");
  manifest.files.clear();
  manifest.tensors.clear();
  for (int i = 0; i < 3000; ++i) {
    TensorEntry tensor;
    tensor.name = tensor.index = std::to_string(10'000 + i);
    tensor.shape = {i, 0};
    manifest.tensors.push_back(tensor);
  }
  const std::string good = print_listed_manifest(manifest);
  manifest.tensors[1700].index.clear();
  manifest.tensors[2900].index.clear();
  const std::string bad = print_listed_manifest(manifest);
  EXPECT_EQ(print_listed_manifest(parse_manifest(good, "m")), good);
  EXPECT_THAT(refused(bad), testing::HasSubstr("tensor \"11700\": \"index\" is not the path"));
}

TEST(ParseManifest, TakesKeysInAnyOrderAndIgnoresUnknownOnes) {
  std::string text = valid_text();
  text = manifest_with(text, "\"step\":100,", "");
  text = manifest_with(
      text, "\"index\":{\"name\":\"index.h5\"",
      "\"step\":100, \"new key\":[{\"x\":null}],\n\t\"index\":{\"y\":1,\"name\":\"index.h5\"");
  text = manifest_with(text, "\"dtype\":\"f32\"", "\"dtype\":\"f32\",\"cousin\":\"tensor\"");
  text = manifest_with(text, "\"layout\":\"chunked\"", "\"parity\":7,\"layout\":\"chunked\"");
  text = manifest_with(text, "\"table\":{", "\"tier\":1,\"table\":{\"z\":[],");
  EXPECT_EQ(print_listed_manifest(parse_manifest(text, "m")), valid_text());
}

TEST(ParseManifest, RefusesAnotherVersionAsUnsupported) {
  for (const char* version : {"3", "0", "-1", "1000000"}) {
    const auto text =
        manifest_with(valid_text(), "\"version\":1", std::string("\"version\":") + version);
    EXPECT_THAT(refused(text, ErrorCode::unsupported),
                testing::AllOf(testing::HasSubstr(std::string("format version ") + version),
                               testing::HasSubstr("reads version 1 to 2")));
  }
  // Whatever else a newer version has changed.
  const auto text = with_checksum("{\"format\":\"shardwise-checkpoint\",\"version\":3");
  EXPECT_THAT(refused(text, ErrorCode::unsupported), testing::HasSubstr("version 3"));
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

// One line per rule of the format page: what is replaced by what, and what the message says.
struct Hostile {
  std::string_view from, to, message;
};

constexpr Hostile kHostile[] = {
    // the whole
    {"{\"format\":\"shardwise-checkpoint\"", "{\"format\":\"other\"", "\"format\" is \"other\""},
    {"\"format\":\"shardwise-checkpoint\",", "", "key \"format\" is missing"},
    {"\"version\":1", "\"version\":\"1\"", "\"version\" is not an integer"},
    {"\"version\":1", "\"version\":1.0", "\"version\" is not an integer"},
    {"\"version\":1,", "", "key \"version\" is missing"},
    {"\"minor\":1", "\"minor\":-1", "\"minor\" is -1, needed is 0"},
    {"\"minor\":1", "\"minor\":\"1\"", "\"minor\" holds a JSON string, needed is an integer"},
    {"\"version\":1", "\"version\":1,\"version\":1", "same key twice"},
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
    {"\"shape\":[4,4]", "\"shape\":[0,4]", "tensor \"a\": it has no elements, but pieces"},
    {"\"shape\":[4,4]", "\"shape\":[5,4]", "tensor \"a\": cover the tensor: element"},
    {"\"shape\":[4,4]", "\"shape\":[3,4]", "leaves the tensor's shape [3, 4]"},
    {"\"mesh\":\"?\"", "\"mesh\":null", "\"mesh\" is a JSON null, needed is a string"},
    {"\"spec\":\"\"", "\"spec\":[]", "\"spec\" is a JSON array, needed is a string"},
    {"\"spec\":\"\"", "\"spec\":\"\",\"policy\":1", "\"policy\" is a JSON number"},
    {"\"index\":\"a\"", "\"index\":\"\"", "tensor \"a\": \"index\" is not the path"},
    {"\"index\":\"a\"", "\"index\":\"b\"", "another tensor has the index \"b\" too"},
    {"\"pieces\":[", "\"pieces\":[3,", "tensor \"a\" piece 0: is a JSON number"},
    {"\"pieces\":[", "\"pieces\":[],\"x\":[", "tensor \"a\": cover the tensor: element"},
    // pieces
    {"[[0,4],[0,2]]", "[[0,4],[0,3]]", "tensor \"a\": cover the tensor: element"},
    {"[[0,4],[0,2]]", "[[0,4],[0,5]]", "piece 0: box [0:4, 0:5] leaves the tensor's shape"},
    {"[[0,4],[0,2]]", "[[0,4],[2,2]]", "piece 0: box [0:4, 2:2] is empty"},
    {"[[0,4],[0,2]]", "[[0,4],[2,0]]", "piece 0: \"box\" begins at 2 and ends at 0"},
    {"[[0,4],[0,2]]", "[[0,4],[-1,2]]", "piece 0: \"box\" is -1"},
    {"[[0,4],[0,2]]", "[[0,4]]", "piece 0: \"box\" has 1 dims, the tensor has 2"},
    {"[[0,4],[0,2]]", "[[0,4],[0,2,4]]", "needed are pairs"},
    {"[[0,4],[0,2]]", "[[0,4],2]", "needed are pairs"},
    {"\"file\":0", "\"file\":1", "tensor \"a\" piece 0: \"file\" is 1, there are 1"},
    {"\"file\":0", "\"file\":-1", "piece 0: \"file\" is -1"},
    {"\"dataset\":\"/tensors/0/0\"", "\"dataset\":\"/tensors/0/1\"", "needed is \"/tensors/0/0\""},
    {"\"layout\":\"chunked\"", "\"layout\":\"compact\"", "known are contiguous, chunked"},
    {"\"layout\":\"chunked\"", "\"layout\":\"contiguous\"", "it is contiguous and has the extents"},
    {"\"chunk\":[2,2],\"codec\":\"zstd\"", "\"chunk\":[4,2],\"codec\":\"zstd\"",
     "begin at record 2 of 5 in file 0, needed is record 1"},
    {"\"layout\":\"contiguous\",\"chunk\":[3],\"codec\":\"none\"",
     "\"layout\":\"contiguous\",\"chunk\":[3],\"codec\":\"zstd\"", "but its codec is zstd"},
    {"\"chunk\":[2,2]", "\"chunk\":[0,2]", "piece 0: \"chunk\" is 0, needed is 1"},
    {"\"chunk\":[2,2]", "\"chunk\":[2]", "\"chunk\" has 1 dims, the tensor has 2"},
    {"\"chunk\":[2,2]", "\"chunk\":[2,3]", "chunk [2, 3] is larger than the piece, [4, 2]"},
    {"\"codec\":\"zstd\"", "\"codec\":\"lz4\"", "\"codec\" is \"lz4\", known are none, zstd"},
    {"\"first_chunk\":0", "\"first_chunk\":1", "its 2 chunks begin at record 1 of 5"},
    {"\"first_chunk\":2", "\"first_chunk\":0", "its 2 chunks begin at record 0 of 5"},
    {"\"first_chunk\":2", "\"first_chunk\":9223372036854775807", "needed is record"},
    // files
    {"\"chunks\":5", "\"chunks\":4", "its 1 chunks begin at record 4 of 4"},
    {"\"chunks\":5", "\"chunks\":6", "5 chunk records belong to pieces, the table has 6"},
    {"\"chunks\":5", "\"chunks\":576460752303423489", "needed is at most 33554432"},
    {"\"chunks\":5", "\"chunks\":33554433", "33554433 chunks, needed is at most 33554432"},
    {"\"chunks\":5", "\"chunks\":33554432", "are not inside the data"},
    {"\"chunks\":5", "\"chunks\":-5", "file 0 table: \"chunks\" is -5"},
    {"\"table\":{\"address\":", "\"table\":{\"address\":1", "are not inside the data"},
    {"\"table\":{\"address\":", "\"table\":{\"address\":0,\"old\":", "are not inside the data"},
    {"\"xxh3\":\"", "\"xxh3\":\"0", "file 0 table: \"xxh3\" is not 16 hex digits"},
    {"\"structure\":\"", "\"structure\":\"0", "file 0: \"structure\" is not 32 hex digits"},
    {"\"decoded\":{", "\"old\":{", "file 0: key \"decoded\" is missing"},
    {"\"decoded\":{\"address\":", "\"decoded\":{\"address\":0,\"old\":",
     "its 5 decoded hashes, at 0, are not after the data"},
    {"\"decoded\":{\"address\":", "\"decoded\":{\"address\":1", "are not after the data"},
    {"\"decoded\":{", "\"decoded\":{\"xxh3\":\"0\",\"old\":{},", "same key twice"},
    {"\"data\":[72,", "\"data\":[72,1", "but the file has"},
    {"\"data\":[72,", "\"data\":[72000,", "\"data\" begins at 72000"},
    {"\"name\":\"shards-00000-of-00001.h5\"", "\"name\":\"../shards.h5\"",
     "\"../shards.h5\" cannot be"},
    {"\"name\":\"shards-00000-of-00001.h5\"", "\"name\":\"..\"", "\"..\" cannot be the name"},
    {"\"name\":\"shards-00000-of-00001.h5\"", "\"name\":\"\"", "\"\" cannot be the name"},
    {"\"name\":\"shards-00000-of-00001.h5\"", "\"name\":\"a\\u0000\"", "cannot be the name"},
    {"\"name\":\"shards-00000-of-00001.h5\"", "\"name\":\"manifest.json\"", "cannot be the name"},
    {"\"name\":\"shards-00000-of-00001.h5\"", "\"name\":\"index.h5\"", "cannot be the name"},
};

TEST(ParseManifest, RefusesWhatBreaksARule) {
  for (const Hostile& c : kHostile) {
    SCOPED_TRACE(testing::Message() << c.from << "  ->  " << c.to);
    const std::string message = refused(manifest_with(valid_text(), c.from, c.to));
    EXPECT_THAT(message, testing::HasSubstr(std::string(c.message)));
    EXPECT_THAT(message, testing::StartsWith("read manifest dir/manifest.json: "));
  }
}

TEST(ParseManifest, RefusesTheSameFileTwiceAndRecordsOfNoPiece) {
  HandMadeCheckpoint checkpoint({}, 2);
  EXPECT_EQ(parse_manifest(print_listed_manifest(checkpoint.manifest), "m").files.size(), 2u);
  checkpoint.manifest.files[1].name = checkpoint.manifest.files[0].name;
  EXPECT_THAT(refused(print_listed_manifest(checkpoint.manifest)),
              testing::HasSubstr("comes twice"));

  HandMadeCheckpoint spare({});
  spare.manifest.minor = 0;
  spare.manifest.files[0].table_address = 72;
  spare.manifest.files[0].data_end = spare.manifest.files[0].bytes;
  spare.manifest.files[0].chunks = 2;
  EXPECT_THAT(refused(print_listed_manifest(spare.manifest)),
              testing::HasSubstr("0 chunk records belong to pieces, the table has 2"));
}

// Files of the first minor version have no decoded hashes; what a later one adds is ignored.
TEST(ParseManifest, TakesEveryMinorVersion) {
  Manifest manifest = parse_manifest(valid_text(), "m");
  EXPECT_EQ(manifest.minor, 1);
  EXPECT_TRUE(manifest.has_decoded_hashes());
  EXPECT_EQ(parse_manifest(manifest_with(valid_text(), "\"minor\":1", "\"minor\":7"), "m").minor,
            7);

  manifest.minor = 0;
  manifest.files[0].decoded_address = manifest.files[0].decoded_hash = 0;
  const std::string old = print_listed_manifest(manifest);
  EXPECT_EQ(old.find("minor"), std::string::npos);
  EXPECT_EQ(old.find("decoded"), std::string::npos);
  EXPECT_EQ(parse_manifest(old, "m"), manifest);
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

TEST(ParseManifest, BoundsWhatADecoderMustHold) {
  // 2^27 bytes in one chunk; the number of chunks and all the rest agree.
  HandMadeCheckpoint checkpoint({{.name = "a",
                                  .dtype = DType::u8,
                                  .shape = {1},
                                  .pieces = {Box({0}, {1})},
                                  .data = counting_values(DType::u8, {1}),
                                  .chunk = {1},
                                  .codec = StoredCodec::zstd}});
  auto& tensor = checkpoint.manifest.tensors[0];
  tensor.shape = {1 << 27};
  change_piece(tensor, 0, [](PieceEntry& piece) {
    piece.box = Box({0}, {1 << 27});
    piece.chunk = {1 << 27};
  });
  EXPECT_THAT(refused(print_listed_manifest(checkpoint.manifest)),
              testing::HasSubstr("a chunk has 134217728 bytes, needed is at most 67108864"));
}

TEST(ParseManifest, IsNotImpressedByDepthOrLength) {
  const std::string deep(1'000'000, '[');
  EXPECT_THAT(refused(manifest_with(valid_text(), "\"user\":{}", "\"user\":" + deep)),
              testing::HasSubstr("nested deeper than 256"));
  const std::string closed = deep + std::string(deep.size(), ']');
  EXPECT_THAT(refused(manifest_with(valid_text(), "\"user\":{}", "\"user\":" + closed)),
              testing::HasSubstr("nested deeper than 256"));
  const std::string longest(200'000, 'x');
  EXPECT_LT(refused(manifest_with(valid_text(), "\"layout\":\"chunked\"",
                                  "\"layout\":\"" + longest + "\""))
                .size(),
            400u);
}

}  // namespace
}  // namespace shardwise::detail
