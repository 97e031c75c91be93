// Processes are threads here, and each has a directory as its host's disk.

#include "shardwise/jobs/detail/save/file_transfer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "shardwise/shard/error.h"
#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/hooked_file_system.h"
#include "testing/socket_transport.h"
#include "testing/temp_dir.h"
#include "testing/tier_job.h"

namespace shardwise::jobs_detail {
namespace {

namespace fs = std::filesystem;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr std::size_t kPartBytes = std::size_t{8} << 20;

class FileTransfers : public testing::Test {
 protected:
  fs::path host(int rank) const { return host_of(dir_.path(), rank); }

  /// A file of the rank, of this many bytes.
  FileTransfer file_of(int rank, int to, const std::string& name, std::size_t bytes) const {
    fs::create_directories(host(rank));
    std::mt19937 random(static_cast<unsigned>(bytes) + static_cast<unsigned>(rank));
    std::string text(bytes, '\0');
    for (char& c : text) c = static_cast<char>(random());
    std::ofstream(host(rank) / name, std::ios::binary) << text;
    return {rank, to, name, bytes};
  }

  /// Transfers on all ranks; what failed on each. A rank's own list may differ.
  std::vector<std::vector<FailedTransfer>> transfer(
      int ranks, const std::function<std::vector<FileTransfer>(int)>& transfers,
      const std::shared_ptr<FileSystem>& files = posix_file_system()) {
    std::vector<std::vector<FailedTransfer>> failed(static_cast<std::size_t>(ranks));
    errors_ = run_ranks(ranks, {}, [&](std::shared_ptr<SocketTransport> transport) {
      const int rank = transport->rank();
      const ProcessGroup group(std::move(transport));
      fs::create_directories(host(rank) / "taken");
      failed[static_cast<std::size_t>(rank)] = transfer_files(
          group, *files, transfers(rank),
          [&](const std::string& name) { return host(rank) / name; }, host(rank) / "taken");
    });
    return failed;
  }

  bool has_copy(const FileTransfer& transfer) const {
    const fs::path copy = host(transfer.to) / "taken" / transfer.name;
    return fs::exists(copy) && file_bytes(copy) == file_bytes(host(transfer.from) / transfer.name);
  }

  const TempDir dir_;
  std::vector<std::string> errors_;
};

// Empty, of a byte, of one part and of more; to several, to the sender itself, and over an old one.
TEST_F(FileTransfers, ArriveByteForByte) {
  const std::vector<FileTransfer> transfers{file_of(0, 1, "large", 2 * kPartBytes + 1),
                                            file_of(0, 2, "large", 2 * kPartBytes + 1),
                                            file_of(1, 0, "empty", 0),
                                            file_of(1, 2, "part", kPartBytes),
                                            file_of(2, 2, "own", 70),
                                            file_of(2, 0, "byte", 1)};
  fs::create_directories(host(0) / "taken");
  std::ofstream(host(0) / "taken/byte") << "an old copy";
  const auto failed = transfer(3, [&](int) { return transfers; });
  EXPECT_THAT(errors_, Each(""));
  EXPECT_THAT(failed, Each(IsEmpty()));
  for (const FileTransfer& transfer : transfers) EXPECT_TRUE(has_copy(transfer)) << transfer.name;
}

// Not there, shorter than it was said, and unreadable from its second part on.
TEST_F(FileTransfers, WhatItsSenderCannotReadFailsWithTheReasonAndLeavesNoFile) {
  std::vector<FileTransfer> transfers{{0, 1, "missing", 9},
                                      file_of(1, 2, "short", 5),
                                      file_of(2, 0, "bad", 2 * kPartBytes),
                                      file_of(0, 2, "good", kPartBytes + 3)};
  transfers[1].bytes = 6;
  const auto files = std::make_shared<HookedFileSystem>(
      [](std::string_view, const fs::path&) {},
      [](const fs::path& path, std::uint64_t offset, std::size_t) {
        if (path.filename() != "bad" || offset == 0) return;
        throw Error(ErrorCode::io, "read bad: Input/output error");
      });
  const auto failed = transfer(
      3, [&](int) { return transfers; }, files);
  EXPECT_THAT(errors_, Each(""));
  const std::size_t numbers[] = {2, 0, 1};  // by the rank that takes
  const std::string reasons[] = {"read bad: Input/output error", "missing", "short"};
  for (std::size_t rank = 0; rank < 3; ++rank) {
    SCOPED_TRACE(rank);
    ASSERT_THAT(failed[rank], SizeIs(1));
    EXPECT_EQ(failed[rank].front().number, numbers[rank]);
    EXPECT_THAT(failed[rank].front().problem, HasSubstr(reasons[rank]));
    EXPECT_FALSE(
        fs::exists(host(static_cast<int>(rank)) / "taken" / transfers[numbers[rank]].name));
  }
  EXPECT_TRUE(has_copy(transfers[3]));
}

TEST_F(FileTransfers, APartOfAnotherSizeIsNotTaken) {
  const FileTransfer transfer_4 = file_of(0, 1, "file", 4);
  const auto failed = transfer(2, [&](int rank) {
    FileTransfer own = transfer_4;
    if (rank == 1) own.bytes = 3;
    return std::vector<FileTransfer>{own};
  });
  EXPECT_THAT(errors_, Each(""));
  ASSERT_THAT(failed[1], SizeIs(1));
  EXPECT_EQ(failed[1].front().problem, "found 4 bytes at 0, needed 3");
  EXPECT_FALSE(fs::exists(host(1) / "taken/file"));
}

TEST_F(FileTransfers, WhatCannotBeWrittenThrows) {
  const std::vector<FileTransfer> transfers{file_of(0, 1, "file", 4)};
  const auto files =
      std::make_shared<HookedFileSystem>([](std::string_view operation, const fs::path&) {
        if (operation == "create") throw Error(ErrorCode::io, "create file: No space left");
      });
  transfer(
      2, [&](int) { return transfers; }, files);
  EXPECT_THAT(errors_[1], HasSubstr("No space left"));
}

TEST(LinkedWants, AreReadAsTheyWereSent) {
  const std::vector<FileTransfer> transfers{{0, 1, "a", 3}, {1, 0, "b", 3}};
  const std::vector<LinkedWant> wants{
      {0, {.description_hash = {.high = 1, .low = 2}, .bytes = 3, .data_end = 4}}};
  const Bytes message = encode(wants);
  EXPECT_EQ(decode_linked_wants(message, transfers, 1), wants);
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument, [&] { decode_linked_wants(message, transfers, 0); }),
      HasSubstr("a file that it does not get"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] {
                           decode_linked_wants(encode({{{2, {}}}}), transfers, 1);
                         }),
              HasSubstr("a file that it does not get"));
  for (std::size_t i = 0; i < message.size(); ++i) {
    Bytes damaged = message;
    damaged[i] ^= std::byte{1};
    message_of(ErrorCode::corrupt, [&] { decode_linked_wants(damaged, transfers, 1); });
  }
}

}  // namespace
}  // namespace shardwise::jobs_detail
