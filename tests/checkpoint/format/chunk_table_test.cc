#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"

namespace shardwise::detail {
namespace {

/// Records 0..3: "a" f32 [4, 4], raw chunks of 16 bytes; 4..5: "z" zstd, 512 bytes decoded.
HandMadeCheckpoint checkpoint() {
  return HandMadeCheckpoint({{.name = "a",
                              .shape = {4, 4},
                              .pieces = {Box({0, 0}, {4, 4})},
                              .data = counting_values(DType::f32, {4, 4}),
                              .chunk = {2, 2}},
                             {.name = "z",
                              .shape = {256},
                              .pieces = {Box({0}, {256})},
                              .data = counting_values(DType::f32, {256}),
                              .chunk = {128},
                              .codec = StoredCodec::zstd}});
}

ChunkTable table_of(const HandMadeCheckpoint& made) {
  return {made.files[0].records, made.files[0].decoded_hashes};
}

void check(const Manifest& manifest, const ChunkTable& table) {
  check_chunk_table(manifest.tensors, manifest.files[0], pieces_in_file(manifest.tensors, 0), table,
                    "f.h5");
}

TEST(ChunkTable, ThatWasWrittenIsValid) {
  const HandMadeCheckpoint made = checkpoint();
  ASSERT_EQ(made.files[0].records.size(), 6u);
  ASSERT_EQ(made.files[0].records[4].filter_mask, 0u);
  check(made.manifest, table_of(made));
}

TEST(ChunkTable, RefusesRecordsThatCannotBe) {
  const HandMadeCheckpoint made = checkpoint();
  const FileEntry& file = made.manifest.files[0];
  using Records = std::vector<ChunkRecord>;
  const struct {
    const char* name;
    std::function<void(Records&)> change;
    const char* message;
  } cases[] = {
      {"one missing", [](Records& r) { r.pop_back(); }, "has 5 records, the manifest says 6"},
      {"two hashes of raw", [](Records& r) { r[1].hash = 7; },
       "chunk 1 [0:2, 2:4]: it is stored as it is with the hash 0000000000000007, but its decoded"},
      {"last field", [](Records& r) { r[1].linked = 7; },
       "tensor \"a\" chunk 1 [0:2, 2:4]: it is in linked file 7, needed is 0 to 0"},
      {"mask of raw", [](Records& r) { r[2].filter_mask = 3; }, "filter mask is 3, needed is 0"},
      {"half a mask", [](Records& r) { r[4].filter_mask = 1; },
       "tensor \"z\" chunk 4 [0:128]: its filter mask is 1, needed is 0 or 3"},
      {"raw too short", [](Records& r) { r[0].stored_bytes = 15; },
       "stored as it is in 15 bytes, but has 16"},
      {"raw too long", [](Records& r) { r[0].stored_bytes = 17; }, "in 17 bytes, but has 16"},
      {"raw of zstd", [](Records& r) { r[4].filter_mask = 3; }, "as it is in"},
      {"zstd grows", [](Records& r) { r[4].stored_bytes = 513; }, "513 bytes, needed is 1 .. 512"},
      {"zstd of nothing", [](Records& r) { r[4].stored_bytes = 0; }, "0 bytes, needed is 1 .. 512"},
      {"odd address", [](Records& r) { r[3].address += 4; }, "is not a multiple of 8"},
      {"in the header", [](Records& r) { r[3].address = 64; }, "are not inside the data"},
      {"past the end", [&](Records& r) { r[3].address = file.data_end / 8 * 8 - 8; },
       "are not inside the data"},
      {"far past the end", [](Records& r) { r[3].address = UINT64_MAX - 7; },
       "are not inside the data"},
      {"same place", [](Records& r) { r[1].address = r[0].address; }, "overlap"},
      {"half over another", [](Records& r) { r[1].address = r[0].address + 8; },
       "chunk 0 at [72, 88) and chunk 1 at [80, 96) overlap"},
      {"over the table", [&](Records& r) { r[0].address = file.table_address; },
       "the chunk table at"},
      {"swallows another", [](Records& r) { r[5].address = r[0].address; }, "overlap"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    ChunkTable table = table_of(made);
    c.change(table.records);
    const std::string message =
        message_of(ErrorCode::corrupt, [&] { check(made.manifest, table); });
    EXPECT_THAT(message, testing::HasSubstr(c.message));
    EXPECT_THAT(message, testing::StartsWith("read chunk table of f.h5: "));
  }
}

TEST(ChunkTable, HasADecodedHashForEachRecord) {
  const HandMadeCheckpoint made = checkpoint();
  ChunkTable table = table_of(made);
  table.decoded_hashes.pop_back();
  const auto refused = [&] {
    return message_of(ErrorCode::corrupt, [&] { check(made.manifest, table); });
  };
  EXPECT_THAT(refused(), testing::HasSubstr("it has 6 records, but 5 decoded hashes"));
  table.decoded_hashes.clear();
  EXPECT_THAT(refused(), testing::HasSubstr("it has 6 records, but 0 decoded hashes"));
}

TEST(ChunkTable, OfAFileWithoutChunksIsEmpty) {
  const HandMadeCheckpoint made({});
  check(made.manifest, {});
}

}  // namespace
}  // namespace shardwise::detail
