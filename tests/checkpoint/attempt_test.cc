#include "shardwise/checkpoint/detail/write/attempt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardwise/checkpoint/detail/write/root_names.h"
#include "testing/errors.h"
#include "testing/faulty_file_system.h"
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
  EXPECT_EQ(to_string(attempt.publish(Existing::replace)), "step-00000007.g6");
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

TEST_F(AttemptTest, GarbageCollectionLeavesItAlone) {
  const Attempt attempt(*files_, dir_.path(), 7, leftovers_);
  const GarbageReport report = collect_root_garbage(*files_, dir_.path());
  EXPECT_THAT(report.removed, IsEmpty());
  EXPECT_EQ(report.kept.size(), 2u);
  EXPECT_EQ(names().size(), 2u);
}

// Somebody takes the unfinished lease for a dead process's: the attempt makes another one.
TEST_F(AttemptTest, ALostUnfinishedLeaseIsMadeAgain) {
  class Thief final : public FileSystem {
   public:
    explicit Thief(std::shared_ptr<FileSystem> real) : real_(std::move(real)) {}
    std::unique_ptr<File> create(const std::filesystem::path& path, Caching caching) override {
      return real_->create(path, caching);
    }
    std::unique_ptr<File> open(const std::filesystem::path& path, Caching caching) override {
      return real_->open(path, caching);
    }
    void make_directory(const std::filesystem::path& path) override { real_->make_directory(path); }
    void sync_directory(const std::filesystem::path& path) override { real_->sync_directory(path); }
    void rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
      if (++renames <= 3) collect_root_garbage(*real_, from.parent_path());
      real_->rename(from, to);
    }
    void remove(const std::filesystem::path& path) override { real_->remove(path); }
    std::vector<std::string> list(const std::filesystem::path& path) override {
      return real_->list(path);
    }
    int renames = 0;

   private:
    std::shared_ptr<FileSystem> real_;
  };
  Thief thief(files_);
  const Attempt attempt(thief, dir_.path(), 7, leftovers_);
  EXPECT_EQ(thief.renames, 4);
  EXPECT_EQ(collect_root_garbage(*files_, dir_.path()).kept.size(), 2u);
}

TEST_F(AttemptTest, RemoveTreeTakesFoldersInFoldersAndNothing) {
  remove_tree(*files_, dir_ / "not there");
  std::filesystem::create_directories(dir_ / "a/b/c");
  put(dir_ / "a/x");
  put(dir_ / "a/b/y");
  remove_tree(*files_, dir_ / "a");
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(AttemptTest, RemovedCheckpointsVanishAtOnce) {
  files_->make_directory(dir_ / "step-00000001");
  put(dir_ / "step-00000001/manifest.json");
  const auto faulty = std::make_shared<FaultyFileSystem>(2, Fault::io);  // rename, then sync fails
  EXPECT_THROW(remove_checkpoint(*faulty, dir_.path(), {1, 1}), Error);
  EXPECT_THAT(committed_names(*files_, dir_.path()), IsEmpty());
  remove_checkpoint(*files_, dir_.path(), {1, 1});
  EXPECT_EQ(collect_root_garbage(*files_, dir_.path()).removed.size(), 1u);
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(AttemptTest, CollectionGoesOnAfterAnError) {
  const std::string id(32, 'a'), other(32, 'b');
  for (const std::string& name : {".trash-x." + id, ".trash-x." + other}) {
    files_->make_directory(dir_ / name);
  }
  const auto faulty = std::make_shared<FaultyFileSystem>(2, Fault::io);  // list, then a removal
  EXPECT_THROW(collect_root_garbage(*faulty, dir_.path()), Error);
  EXPECT_EQ(names().size(), 1u);
}

}  // namespace
}  // namespace shardwise::detail
