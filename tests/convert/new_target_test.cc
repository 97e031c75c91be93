#include "shardwise/convert/detail/write/new_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "testing/errors.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using detail::NewTarget;
using detail::TargetKind;
using testing::HasSubstr;

TEST(NewTarget, HasItsNameOnceItIsPublished) {
  const TempDir dir;
  const auto files = posix_file_system();
  {
    NewTarget given_up(*files, dir / "m", TargetKind::folder, Existing::fail);
    given_up.create("model.npz")->sync();
  }
  EXPECT_TRUE(files->list(dir.path()).empty());
  NewTarget target(*files, dir / "m", TargetKind::folder, Existing::fail);
  target.create("model.npz")->sync();
  EXPECT_FALSE(std::filesystem::exists(dir / "m"));
  target.publish();
  EXPECT_TRUE(std::filesystem::exists(dir / "m" / "model.npz"));
}

TEST(NewTarget, ReplacesOnlyWhatAnExportWrites) {
  const TempDir dir;
  const auto files = posix_file_system();
  const auto refused = [&](TargetKind kind, Existing existing,
                           ErrorCode code = ErrorCode::already_exists) {
    return message_of(code, [&] { NewTarget(*files, dir / "m", kind, existing); });
  };
  std::filesystem::create_directory(dir / "m");
  EXPECT_THAT(refused(TargetKind::folder, Existing::fail), HasSubstr("it exists"));
  EXPECT_THAT(refused(TargetKind::file, Existing::replace), HasSubstr("is no file"));
  write_file(dir / "m" / "model.npz", "");
  NewTarget(*files, dir / "m", TargetKind::folder, Existing::replace).publish();
  EXPECT_TRUE(std::filesystem::is_empty(dir / "m"));
  write_file(dir / "m" / "mine.txt", "");
  EXPECT_THAT(refused(TargetKind::folder, Existing::replace), HasSubstr("holds \"mine.txt\", too"));
  write_file(dir / "manifest.json", "");
  write_file(dir / "shards-0.h5", "");
  EXPECT_THAT(refused(TargetKind::folder, Existing::replace, ErrorCode::invalid_argument),
              HasSubstr("inside a checkpoint"));
}

TEST(NewTarget, IsSkippedIfItsCheckPasses) {
  const TempDir dir;
  const auto files = posix_file_system();
  const auto bad = [] { throw Error(ErrorCode::corrupt, "it is cut off"); };
  EXPECT_FALSE(NewTarget::skips(*files, dir / "m", bad));
  write_file(dir / "m", "");
  EXPECT_TRUE(NewTarget::skips(*files, dir / "m", [] {}));
  EXPECT_THAT(
      message_of(ErrorCode::already_exists, [&] { NewTarget::skips(*files, dir / "m", bad); }),
      HasSubstr("found none (it is cut off)"));
}

}  // namespace
}  // namespace shardwise
