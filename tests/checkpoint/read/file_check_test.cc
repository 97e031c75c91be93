#include "shardwise/checkpoint/detail/read/file_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/errors.h"
#include "testing/flip.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// "a" f32 [8], raw, in file 0; "z" f32 [512], compressed, in file 1.
HandMadeCheckpoint made() {
  return HandMadeCheckpoint({{.name = "a",
                              .shape = {8},
                              .pieces = {Box({0}, {8})},
                              .data = scattered_values(DType::f32, {8}),
                              .chunk = {4}},
                             {.name = "z",
                              .shape = {512},
                              .pieces = {Box({0}, {512})},
                              .data = counting_values(DType::f32, {512}),
                              .chunk = {256},
                              .codec = StoredCodec::zstd}},
                            2);
}

class FileCheck : public testing::Test {
 protected:
  Manifest manifest() const {
    return parse_manifest(print_manifest(checkpoint_.manifest), "the manifest");
  }
  fs::path file(std::size_t number) const {
    return path_ / checkpoint_.manifest.files[number].name;
  }
  StoredCheckpoint unread() const {
    return unread_checkpoint(open_directory(*posix_file_system(), path_), manifest());
  }
  void check(std::size_t number) const {
    StoredCheckpoint checkpoint = unread();
    check_file(checkpoint, number);
  }

  const HandMadeCheckpoint checkpoint_ = made();
  const TempDir dir_;
  const fs::path path_ = checkpoint_.write(dir_.path());
};

TEST_F(FileCheck, TakesAFileAsItWasWrittenThoughTheOthersAreGone) {
  check(0);
  check(1);
  fs::remove(file(0));
  check(1);
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { check(0); }),
              HasSubstr(checkpoint_.manifest.files[0].name));
}

TEST_F(FileCheck, FilesAreCheckedOneAfterTheOtherInOneDirectory) {
  StoredCheckpoint checkpoint = unread();
  EXPECT_EQ(checkpoint.is_loaded, (std::vector<bool>{false, false}));
  check_file(checkpoint, 1);
  EXPECT_EQ(checkpoint.is_loaded, (std::vector<bool>{false, true}));
  check_file(checkpoint, 0);
  EXPECT_EQ(checkpoint.is_loaded, (std::vector<bool>{true, true}));
}

TEST_F(FileCheck, FindsEveryChangedByteButThoseThatBelongToNothing) {
  for (const std::size_t number : {0u, 1u}) {
    const FileEntry& entry = checkpoint_.manifest.files[number];
    const std::vector<ChunkRecord>& records = checkpoint_.files[number].records;
    ASSERT_LT(entry.bytes, 20'000u);
    std::size_t unused = 0;
    for (std::uint64_t place = 0; place < entry.bytes; ++place) {
      flip(file(number), place, std::byte{0x10});
      try {
        check(number);
        // It is in a gap before aligned bytes.
        ++unused;
        EXPECT_LE(entry.data_begin, place);
        EXPECT_LT(place, entry.data_end);
        EXPECT_EQ(checkpoint_.files[number].bytes[place], std::byte{0}) << place;
        for (const ChunkRecord& record : records) {
          EXPECT_TRUE(place < record.address || place >= record.address + record.stored_bytes)
              << place;
        }
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::corrupt);
        ASSERT_THAT(error.what(), HasSubstr(entry.name)) << place;
      }
      flip(file(number), place, std::byte{0x10});
    }
    EXPECT_LT(unused, 64 * (records.size() + 3));  // tables and description are aligned, too
    check(number);
  }
}

TEST_F(FileCheck, FindsEveryBadChunk) {
  const auto bad = [&](std::size_t number) {
    StoredCheckpoint checkpoint = unread();
    std::vector<std::int64_t> numbers;
    for (const BadChunk& chunk : find_bad_chunks(checkpoint, number)) {
      EXPECT_THAT(chunk.problem, HasSubstr(checkpoint_.manifest.files[number].name));
      numbers.push_back(chunk.number);
    }
    return numbers;
  };
  EXPECT_THAT(bad(0), testing::IsEmpty());
  for (const std::int64_t chunk : {1, 0}) {
    flip(file(1), checkpoint_.files[1].records[static_cast<std::size_t>(chunk)].address,
         std::byte{1});
    EXPECT_THAT(bad(0), testing::IsEmpty());
    EXPECT_THAT(bad(1), testing::Contains(chunk));
  }
  EXPECT_THAT(bad(1), testing::UnorderedElementsAre(0, 1));
}

TEST_F(FileCheck, SaysWhatIsWrong) {
  const FileEntry& entry = checkpoint_.manifest.files[0];
  flip(file(0), 0, std::byte{1});
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { check(0); }),
              testing::AllOf(HasSubstr("check " + file(0).string()), HasSubstr("HDF5's own bytes"),
                             HasSubstr("needed is " + to_hex(entry.structure_hash))));
  flip(file(0), 0, std::byte{1});
  flip(file(0), checkpoint_.files[0].records[1].address, std::byte{1});
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { check(0); }),
              testing::AllOf(HasSubstr("\"a\""), HasSubstr("[4:8]")));
  fs::resize_file(file(0), entry.bytes - 1);
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { check(0); }), HasSubstr("bytes"));
}

}  // namespace
}  // namespace shardwise::detail
