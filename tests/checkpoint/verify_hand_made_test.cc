#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardwise/checkpoint/verify.h"
#include "testing/flip.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

TEST(VerifyHandMade, ReportsEachDamagedChunkOnItsOwn) {
  HandMadeCheckpoint made({{.name = "w",
                            .shape = {64},
                            .pieces = {Box({0}, {32}), Box({32}, {64})},
                            .data = scattered_values(DType::f32, {64}),
                            .chunk = {8}}},
                          2);
  made.files[0].bytes[made.files[0].records[1].address] ^= std::byte{1};
  made.files[0].bytes[made.files[0].records[3].address + 5] ^= std::byte{1};
  made.files[1].bytes[made.files[1].records[0].address + 31] ^= std::byte{1};
  const TempDir dir;
  const VerifyReport report = verify_checkpoint(made.write(dir.path()));
  // And the index, which is filler here.
  ASSERT_EQ(report.damage.size(), 4u);
  EXPECT_EQ(report.damage[0].file, "index.h5");
  EXPECT_THAT(report.damage[0].message, HasSubstr("it does not map the tensors of the manifest"));
  EXPECT_EQ(report.damage[1].chunk, 1);
  EXPECT_EQ(report.damage[1].box, Box({8}, {16}));
  EXPECT_EQ(report.damage[2].chunk, 3);
  EXPECT_EQ(report.damage[3].file, "shards-00001-of-00002.h5");
  EXPECT_EQ(report.damage[3].box, Box({32}, {40}));
  EXPECT_EQ(report.chunks, 8);
}

TEST(VerifyHandMade, FindsAChangeOfEverySingleByte) {
  const HandMadeCheckpoint made({{.name = "raw",
                                  .dtype = DType::u16,
                                  .shape = {30},
                                  .pieces = {Box({0}, {30})},
                                  .data = scattered_values(DType::u16, {30}),
                                  .chunk = {7}},
                                 {.name = "zstd",
                                  .shape = {200},
                                  .pieces = {Box({0}, {200})},
                                  .data = counting_values(DType::f32, {200}),
                                  .chunk = {100},
                                  .codec = detail::StoredCodec::zstd}});
  const TempDir dir;
  const fs::path path = made.write(dir.path());
  ASSERT_EQ(verify_checkpoint(path).damage.size(), 1u) << "only the index, which is filler here";
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    SCOPED_TRACE(name);
    for (std::size_t place = 0; place < entry.file_size(); ++place) {
      const auto bit = static_cast<std::byte>(1u << place % 8);
      flip(entry.path(), place, bit);
      const VerifyReport report = verify_checkpoint(path, {.threads = 1});
      flip(entry.path(), place, bit);
      ASSERT_EQ(report.damage.back().file, name) << "byte " << place;
      if (name == "index.h5") {
        EXPECT_THAT(report.damage.back().message, HasSubstr("its hash is")) << "byte " << place;
      }
    }
  }
}

TEST(VerifyHandMade, DecodesWhatHasTheRightHash) {
  HandMadeCheckpoint made({{.name = "w",
                            .shape = {512},
                            .pieces = {Box({0}, {512})},
                            .data = counting_values(DType::f32, {512}),
                            .chunk = {512},
                            .codec = detail::StoredCodec::zstd}});
  detail::ChunkRecord& record = made.files[0].records[0];
  std::byte* const stored = made.files[0].bytes.data() + record.address;
  stored[0] ^= std::byte{1};
  record.hash = hash64(stored, record.stored_bytes);
  made.seal();
  const TempDir dir;
  const VerifyReport report = verify_checkpoint(made.write(dir.path()));
  ASSERT_EQ(report.damage.size(), 2u);
  EXPECT_THAT(report.damage[1].message,
              AllOf(HasSubstr("tensor \"w\" chunk 0 [0:512]"), HasSubstr("not a zstd frame")));
}

}  // namespace
}  // namespace shardwise
