#include "shardwise/storage/detail/open_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Tells when it is closed and how it is read.
class ToldFile final : public File {
 public:
  ToldFile(std::size_t number, std::vector<std::size_t>& closed, std::vector<std::size_t>& once)
      : number_(number), closed_(closed), once_(once) {}
  ~ToldFile() override { closed_.push_back(number_); }

  void read_at(std::uint64_t, std::byte*, std::size_t) override {}
  void read_once() override { once_.push_back(number_); }
  void write_at(std::uint64_t, const std::byte*, std::size_t) override {}
  std::uint64_t size() override { return 0; }
  void resize(std::uint64_t) override {}
  void sync() override {}
  void close() override {}

 private:
  const std::size_t number_;
  std::vector<std::size_t>&closed_, &once_;
};

class OpenFilesTest : public testing::Test {
 protected:
  static constexpr std::size_t kFiles = OpenFiles::kMostOpen + 2;

  std::vector<std::size_t> opened_, closed_, once_;
  OpenFiles files_{kFiles, [this](std::size_t number) {
                     opened_.push_back(number);
                     return std::make_unique<ToldFile>(number, closed_, once_);
                   }};
};

TEST_F(OpenFilesTest, OpensAFileOnce) {
  const std::shared_ptr<File> file = files_.at(3);
  EXPECT_EQ(files_.at(3), file);
  EXPECT_THAT(opened_, ElementsAre(3));
}

TEST_F(OpenFilesTest, ClosesTheOneThatWasOpenedFirst) {
  const std::shared_ptr<File> held = files_.at(0);
  for (std::size_t i = 0; i < OpenFiles::kMostOpen; ++i) files_.at(i);
  EXPECT_THAT(closed_, IsEmpty());
  files_.at(kFiles - 2);  // in the place of 0, which is held
  EXPECT_THAT(closed_, IsEmpty());
  files_.at(kFiles - 1);
  EXPECT_THAT(closed_, ElementsAre(1));
  EXPECT_NE(files_.at(0), held);  // opened again
  EXPECT_THAT(closed_, ElementsAre(1, 2));
}

TEST_F(OpenFilesTest, ReadsAllFilesOnceFromThenOn) {
  files_.at(1);
  files_.read_once();
  files_.at(2);
  files_.at(1);
  EXPECT_THAT(once_, ElementsAre(1, 2));
}

TEST(OpenFiles, IsAskedAgainForAFileThatCouldNotBeOpened) {
  int tries = 0;
  OpenFiles files(1, [&](std::size_t) -> std::unique_ptr<File> {
    ++tries;
    throw Error(ErrorCode::io, "open: broken device");
  });
  EXPECT_THROW(files.at(0), Error);
  EXPECT_THROW(files.at(0), Error);
  EXPECT_EQ(tries, 2);
}

}  // namespace
}  // namespace shardwise::detail
