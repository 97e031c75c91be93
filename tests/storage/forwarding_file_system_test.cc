#include "shardwise/storage/forwarding_file_system.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "shardwise/shard/error.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::ElementsAre;

/// Overrides one operation, as the header's example.
class FullDisk final : public ForwardingFileSystem {
 public:
  using ForwardingFileSystem::ForwardingFileSystem;
  std::unique_ptr<File> create(const std::filesystem::path& path, Caching /*caching*/) override {
    throw Error(ErrorCode::io, "create " + path.string() + ": No space left on device");
  }
};

TEST(ForwardingFileSystem, OneOperationIsOtherwiseAndTheRestAsBefore) {
  const TempDir dir;
  const auto real = posix_file_system();
  const std::array<std::byte, 3> bytes{};
  real->create(dir / "a", Caching::cached)->write_at(0, bytes.data(), bytes.size());
  FullDisk full(real);
  EXPECT_THAT(message_of(ErrorCode::io, [&] { full.create(dir / "b", Caching::cached); }),
              testing::HasSubstr("No space left on device"));
  EXPECT_EQ(full.open(dir / "a")->size(), 3u);
  EXPECT_EQ(full.open_directory(dir.path())->open("a")->size(), 3u);
  EXPECT_TRUE(full.open_directory(dir.path())->is_in_place());
  const std::byte one{1};
  full.open_for_update(dir / "a")->write_at(1, &one, 1);
  std::array<std::byte, 3> read{};
  full.open(dir / "a")->read_at(0, read.data(), read.size());
  EXPECT_THAT(read, ElementsAre(std::byte{0}, one, std::byte{0}));
  full.make_directory(dir / "folder");
  full.rename(dir / "a", dir / "folder/c");
  full.sync_directory(dir.path());
  EXPECT_THAT(full.list(dir / "folder"), ElementsAre("c"));
  EXPECT_EQ(full.reuse(dir / "none", Caching::cached), nullptr);
  const auto again = full.reuse(dir / "folder/c", Caching::cached);
  ASSERT_NE(again, nullptr);
  again->close();
  full.make_directory(dir / "other");
  full.exchange(dir / "folder", dir / "other");
  EXPECT_THAT(full.list(dir / "other"), ElementsAre("c"));
  full.remove(dir / "other/c");
  EXPECT_THAT(full.list(dir / "other"), ElementsAre());
}

/// Counts the operations on every file, in any way of opening it.
class Counting final : public ForwardingFileSystem {
 public:
  int files = 0;

 private:
  std::unique_ptr<File> wrapped(std::unique_ptr<File> file,
                                const std::filesystem::path& /*path*/) override {
    ++files;
    return std::make_unique<ForwardingFile>(std::move(file));
  }
};

TEST(ForwardingFileSystem, EveryFileIsWrapped) {
  const TempDir dir;
  Counting files;
  const std::array<std::byte, 5> bytes{std::byte{1}, std::byte{2}, std::byte{3}};
  {
    const auto file = files.create(dir / "a", Caching::cached);
    file->resize(5);
    file->write_at(0, bytes.data(), 3);
    const WriteRun run{bytes.data() + 3, 2};
    file->write_runs(3, {&run, 1});
    file->sync();
    file->close();
  }
  const auto opened = files.open(dir / "a");
  std::array<std::byte, 5> read;
  opened->read_once();
  opened->read_at(0, read.data(), read.size());
  EXPECT_EQ(read, bytes);
  EXPECT_LE(opened->next_data(0), 5u);
  files.open_directory(dir.path())->open("a");
  files.open_for_update(dir / "a");
  EXPECT_EQ(files.files, 4);
}

}  // namespace
}  // namespace shardwise
