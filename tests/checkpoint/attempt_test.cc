#include "shardwise/checkpoint/detail/root/attempt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/shard/error.h"
#include "testing/errors.h"
#include "testing/faulty_file_system.h"
#include "testing/hooked_file_system.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class AttemptTest : public testing::Test {
 protected:
  std::vector<std::string> names() { return files_->list(dir_.path()); }
  void put(const std::filesystem::path& path) {
    write_whole_file(*files_, path, std::as_bytes(std::span("content", 7)));
  }

  TempDir dir_;
  std::shared_ptr<FileSystem> files_ = posix_file_system();
  std::vector<std::filesystem::path> leftovers_;
};

TEST_F(AttemptTest, LeavesNothingUnlessItIsPublished) {
  {
    const Attempt attempt(*files_, dir_.path(), 7, leftovers_);
    put(attempt.directory() / "file");
    const std::string stem = attempt_stem(7, attempt.id());
    EXPECT_THAT(names(), ElementsAre(lease_name(stem), attempt_name(stem)));
    EXPECT_THAT(committed_names(*files_, dir_.path()), IsEmpty());
  }
  EXPECT_THAT(names(), IsEmpty());
  EXPECT_THAT(leftovers_, IsEmpty());
}

TEST_F(AttemptTest, PublishesOnce) {
  for (const Existing existing : {Existing::fail, Existing::replace, Existing::replace}) {
    Attempt attempt(*files_, dir_.path(), 7, leftovers_);
    put(attempt.directory() / "file");
    attempt.publish(existing);
  }
  EXPECT_THAT(names(), ElementsAre("step-00000007", "step-00000007.g2", "step-00000007.g3"));
  Attempt late(*files_, dir_.path(), 7, leftovers_);
  EXPECT_THAT(message_of(ErrorCode::already_exists, [&] { late.publish(Existing::fail); }),
              testing::HasSubstr("step-00000007"));
}

TEST_F(AttemptTest, ReplacesWhereOnlyALaterGenerationIsLeft) {
  files_->make_directory(dir_ / "step-00000007.g5");
  Attempt attempt(*files_, dir_.path(), 7, leftovers_);
  EXPECT_EQ(attempt.publish(Existing::replace), dir_ / "step-00000007.g6");
}

// A name that somebody has made by hand.
TEST_F(AttemptTest, RefusesToReplaceTheLastGenerationThereCanBe) {
  files_->make_directory(dir_ / "step-00000007.g9223372036854775807");
  {
    Attempt attempt(*files_, dir_.path(), 7, leftovers_);
    EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { attempt.publish(Existing::replace); }),
                testing::HasSubstr("step-00000007.g9223372036854775807: numbers end there"));
  }
  EXPECT_THAT(names(), ElementsAre("step-00000007.g9223372036854775807"));
  Attempt other(*files_, dir_.path(), 8, leftovers_);
  EXPECT_EQ(other.publish(Existing::replace), dir_ / "step-00000008");
}

// A commit that may not be on the disk is taken back.
TEST_F(AttemptTest, AnUnsyncedRootUndoesThePublication) {
  const auto faulty = std::make_shared<FaultyFileSystem>(0, Fault::io);
  {
    Attempt attempt(*faulty, dir_.path(), 7, leftovers_);
    faulty->restart(3);  // list, rename, sync of the root
    EXPECT_THAT(message_of(ErrorCode::io, [&] { attempt.publish(Existing::fail); }),
                testing::HasSubstr("sync directory"));
    EXPECT_THAT(committed_names(*files_, dir_.path()), IsEmpty());
  }
  EXPECT_THAT(names(), IsEmpty());
}

// As long as a crash may bring the checkpoint's name back, there are its files to go with it.
TEST_F(AttemptTest, ItsFilesStayUntilTheRootIsSyncedAgain) {
  bool broken = false;
  HookedFileSystem files([&](std::string_view operation, const std::filesystem::path&) {
    if (broken && operation == "sync directory") throw Error(ErrorCode::io, "broken");
  });
  std::string name;
  {
    Attempt attempt(files, dir_.path(), 7, leftovers_);
    name = attempt_name(attempt_stem(7, attempt.id()));
    put(attempt.directory() / "file");
    broken = true;
    EXPECT_THROW(attempt.publish(Existing::fail), Error);
  }
  EXPECT_THAT(names(), ElementsAre(name)) << "and no lease";
  EXPECT_THROW(collect_root_garbage(files, dir_.path()), Error);
  EXPECT_TRUE(std::filesystem::exists(dir_ / name / "file"));
  broken = false;
  EXPECT_THAT(collect_root_garbage(files, dir_.path()).removed, ElementsAre(name));
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(AttemptTest, APublicationThatCannotBeUndoneStaysWhole) {
  int renames = 0;
  HookedFileSystem files([&](std::string_view operation, const std::filesystem::path&) {
    // The lease's, the publication, its undoing.
    if (operation == "sync directory" || (operation == "rename" && ++renames == 3)) {
      throw Error(ErrorCode::io, "broken");
    }
  });
  {
    Attempt attempt(files, dir_.path(), 7, leftovers_);
    put(attempt.directory() / "file");
    EXPECT_THROW(attempt.publish(Existing::fail), Error);
  }
  EXPECT_THAT(names(), ElementsAre("step-00000007"));
  EXPECT_TRUE(std::filesystem::exists(dir_ / "step-00000007/file"));
}

TEST_F(AttemptTest, GarbageCollectionLeavesItAlone) {
  const Attempt attempt(*files_, dir_.path(), 7, leftovers_);
  const GarbageReport report = collect_root_garbage(*files_, dir_.path());
  EXPECT_THAT(report.removed, IsEmpty());
  EXPECT_EQ(report.kept.size(), 2u);
  EXPECT_EQ(names().size(), 2u);
}

// Somebody takes the unfinished lease for a dead process's: the attempt makes another one.
TEST_F(AttemptTest, ALostUnfinishedLeaseIsMadeAgain) {
  int renames = 0;
  HookedFileSystem thief([&](std::string_view operation, const std::filesystem::path&) {
    if (operation == "rename" && ++renames <= 3) collect_root_garbage(*files_, dir_.path());
  });
  const Attempt attempt(thief, dir_.path(), 7, leftovers_);
  EXPECT_EQ(renames, 4);
  EXPECT_EQ(collect_root_garbage(*files_, dir_.path()).kept.size(), 2u);
}

}  // namespace
}  // namespace shardwise::detail
