// The description of a shard file in itself, and the contents that it refuses.

#include "shardwise/checkpoint/detail/format/file_description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"

namespace shardwise::detail {
namespace {

using testing::HasSubstr;
using PieceWords = std::vector<std::uint64_t>;

/// One file: "a" (f32 [4, 4] in two chunked pieces), "b" (a scalar).
HandMadeCheckpoint sample_checkpoint() {
  return HandMadeCheckpoint({{.name = "a",
                              .shape = {4, 4},
                              .pieces = {Box({0, 0}, {4, 2}), Box({0, 2}, {4, 4})},
                              .data = counting_values(DType::f32, {4, 4}),
                              .chunk = {2, 2}},
                             {.name = "b",
                              .dtype = DType::i64,
                              .pieces = {Box()},
                              .data = counting_values(DType::i64, {})}});
}

PieceWords piece_words_of(const HandMadeCheckpoint& made) {
  std::vector<PieceId> pieces;
  for (std::size_t t = 0; t < made.manifest.tensors.size(); ++t) {
    for (std::size_t p = 0; p < made.manifest.tensors[t].pieces.size(); ++p) {
      pieces.push_back({t, p});
    }
  }
  return describe_pieces(made.manifest.tensors, pieces);
}

/// The manifest as a reader has it: without pieces, and only its own facts about the file.
Manifest unread(const HandMadeCheckpoint& made) {
  return parse_manifest(print_manifest(made.manifest), "m");
}

TEST(FileDescription, IsReadAsItWasWritten) {
  const HandMadeCheckpoint made = sample_checkpoint();
  Manifest manifest = unread(made);
  EXPECT_NE(manifest.files[0], made.manifest.files[0]);
  read_description(describe_file(made.manifest.files[0]), manifest.files[0], "f");
  EXPECT_EQ(manifest.files[0], made.manifest.files[0]);
  add_file_pieces(piece_words_of(made), manifest, 0, "f");
  for (std::size_t t = 0; t < 2; ++t) {
    EXPECT_EQ(manifest.tensors[t].pieces, made.manifest.tensors[t].pieces);
  }
}

TEST(FileDescription, OfAnotherFileOrWithPlacesThatCannotBeIsRefused) {
  const HandMadeCheckpoint made = sample_checkpoint();
  const FileEntry good = made.manifest.files[0];
  const struct {
    std::size_t word;
    std::uint64_t value;
    const char* message;
  } cases[] = {
      {0, 1, "its description is not that of writer 0"},
      {1, 1, "its description is not that of writer 0"},
      {2, good.data_end + 1, "\"data\" begins at"},
      {3, good.data_begin - 1, "are not inside the data"},
      {3, good.data_end - good.chunks * 32, "its description begins at"},
      {4, std::uint64_t{1} << 40, "chunks, needed is at most"},
      {4, ~std::uint64_t{0}, "the -1 records"},
      {6, good.data_end - 1, "decoded hashes, at"},
      {8, good.data_end - 1, "words of its piece table, at"},
      {8, good.bytes + 8, "words of its piece table, at"},
      {9, good.bytes, "words of its piece table, at"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(testing::Message() << "word " << c.word << " is " << c.value);
    auto words = describe_file(good);
    words[c.word] = c.value;
    FileEntry entry = unread(made).files[0];
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read_description(words, entry, "dir/f"); }),
                testing::AllOf(HasSubstr("read shard file dir/f: "), HasSubstr(c.message)));
  }
}

TEST(FileDescription, PieceTablesOfOtherPiecesAreRefused) {
  const HandMadeCheckpoint made = sample_checkpoint();
  // The words of a piece of two dims: tensor, first chunk, head, then begin, end and chunk.
  constexpr std::size_t kFirst = 1, kHead = 2, kBegin = 3, kEnd = 5, kChunk = 7, kNext = 9;
  const struct {
    const char* name;
    std::function<void(PieceWords&)> change;
    const char* message;
  } cases[] = {
      {"empty", [](PieceWords& w) { w.clear(); },
       "where tensor \"a\" [0:4, 0:2] is to be, nothing"},
      {"cut off", [](PieceWords& w) { w.pop_back(); }, "its piece table ends inside a piece"},
      {"a piece less", [](PieceWords& w) { w.resize(2 * kNext); },
       "where tensor \"b\" [] is to be, nothing"},
      {"a piece more", [](PieceWords& w) { w.push_back(1); }, "goes on after the last piece"},
      {"another tensor", [](PieceWords& w) { w[0] ^= 1; }, "a piece of another tensor"},
      {"rank", [](PieceWords& w) { w[kHead] ^= 1; }, "a piece of 3 dims"},
      {"layout", [](PieceWords& w) { w[kHead] |= 0x300; }, "layout 3 and codec 0"},
      {"codec", [](PieceWords& w) { w[kHead] |= 0x40000; }, "layout 1 and codec 4"},
      {"begin", [](PieceWords& w) { w[kBegin] = 1; }, "the box from [1, 0] to [4, 2]"},
      {"end", [](PieceWords& w) { w[kEnd + 1] = 3; }, "the box from [0, 0] to [4, 3]"},
      {"chunk", [](PieceWords& w) { w[kChunk] = 5; }, "is larger than the piece"},
      {"empty chunk", [](PieceWords& w) { w[kChunk] = 0; }, "is empty"},
      {"first chunk", [](PieceWords& w) { w[kNext + kFirst] = 1; },
       "needed is record 2 and room for all"},
      {"fewer chunks", [](PieceWords& w) { w[kChunk] = 4; }, "needed is record 1 and room for all"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    PieceWords words = piece_words_of(made);
    c.change(words);
    Manifest manifest = unread(made);
    manifest.files[0] = made.manifest.files[0];
    EXPECT_THAT(
        message_of(ErrorCode::corrupt, [&] { add_file_pieces(words, manifest, 0, "dir/f"); }),
        testing::AllOf(HasSubstr("read shard file dir/f: "), HasSubstr(c.message)));
  }
  Manifest more = unread(made);
  more.files[0] = made.manifest.files[0];
  ++more.files[0].chunks;
  EXPECT_THAT(message_of(ErrorCode::corrupt,
                         [&] { add_file_pieces(piece_words_of(made), more, 0, "dir/f"); }),
              HasSubstr("5 chunk records belong to pieces, its table has 6"));
}

}  // namespace
}  // namespace shardwise::detail
