#include "shardwise/loader/detail/files/input_file.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "loader/idx_files.h"
#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

TEST(InputFile, ReadsAtOffsetsAndSaysHowMuchCame) {
  const TempDir dir;
  write_file(dir / "x", bytes({1, 2, 3, 4, 5}));
  const InputFile file(dir / "x");
  EXPECT_EQ(file.path(), (dir / "x").string());
  EXPECT_EQ(file.size_bytes(), 5u);
  Bytes out(3);
  EXPECT_EQ(file.read_at(1, out), 3u);
  EXPECT_EQ(out, bytes({2, 3, 4}));
  EXPECT_EQ(file.read_at(3, out), 2u);
  EXPECT_EQ(first_of(out, 2), bytes({4, 5}));
  EXPECT_EQ(file.read_at(5, out), 0u);
  EXPECT_EQ(file.read_at(500, out), 0u);
  EXPECT_EQ(file.read_at(std::size_t{1} << 63, out), 0u);
  EXPECT_EQ(file.read_at(0, {}), 0u);
}

TEST(InputFile, ThrowsWhatTheSystemSays) {
  EXPECT_EQ(message_of(ErrorCode::not_found, [] { InputFile("/nowhere/x"); }),
            "open: /nowhere/x: No such file or directory");
  const TempDir dir;
  write_file(dir / "x", bytes({1}));
  message_of(ErrorCode::not_found, [&] { InputFile(dir / "x/y"); });
}

TEST(InputFile, FollowsLinks) {
  const TempDir dir;
  write_file(dir / "x", bytes({1, 2}));
  std::filesystem::create_symlink("x", dir / "link");
  const InputFile file(dir / "link");
  EXPECT_EQ(file.path(), (dir / "link").string());
  Bytes out(2);
  EXPECT_EQ(file.read_at(0, out), 2u);
  EXPECT_EQ(out, bytes({1, 2}));
}

TEST(InputFile, SaysHowMuchCameOfAFileThatWasCutSinceItWasOpened) {
  const TempDir dir;
  write_file(dir / "x", bytes({1, 2, 3, 4, 5}));
  const InputFile file(dir / "x");
  std::filesystem::resize_file(dir / "x", 3);
  Bytes out(4);
  EXPECT_EQ(file.read_at(1, out), 2u);
  EXPECT_EQ(first_of(out, 2), bytes({2, 3}));
  EXPECT_EQ(file.read_at(4, out), 0u);
}

}  // namespace
}  // namespace shardwise::detail
