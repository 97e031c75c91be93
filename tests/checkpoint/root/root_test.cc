#include "shardwise/checkpoint/detail/root/root.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "testing/errors.h"
#include "testing/faulty_file_system.h"
#include "testing/hooked_file_system.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class RootTest : public testing::Test {
 protected:
  std::vector<std::string> names() { return files_->list(dir_.path()); }
  void put(const std::filesystem::path& path) {
    write_file(path, std::as_bytes(std::span("content", 7)));
  }

  TempDir dir_;
  std::shared_ptr<FileSystem> files_ = posix_file_system();
};

// Every level that is made has its name on the disk before anything is put below the root.
TEST_F(RootTest, IsMadeLevelByLevelAndSynced) {
  std::vector<std::string> done;
  HookedFileSystem files([&](std::string_view operation, const std::filesystem::path& path) {
    done.push_back(std::string(operation) + " " + path.lexically_relative(dir_.path()).string());
  });
  make_root(files, dir_ / "a/b/c/");
  EXPECT_THAT(done, ElementsAre("list a/b/c/", "make directory a/b/c", "make directory a/b",
                                "make directory a", "sync directory .", "make directory a/b",
                                "sync directory a", "make directory a/b/c", "sync directory a/b"));
  EXPECT_TRUE(std::filesystem::is_directory(dir_ / "a/b/c"));
  done.clear();
  make_root(files, dir_ / "a/b/c");
  EXPECT_THAT(done, ElementsAre("list a/b/c"));
}

TEST_F(RootTest, MayBeMadeByAnotherProcessAtTheSameTime) {
  HookedFileSystem files([&](std::string_view operation, const std::filesystem::path& path) {
    if (operation == "make directory") std::filesystem::create_directories(path);
  });
  make_root(files, dir_ / "a/b");
  EXPECT_TRUE(std::filesystem::is_directory(dir_ / "a/b"));
}

TEST_F(RootTest, EveryFailureToMakeItIsAnError) {
  for (int at = 1; at <= 6; ++at) {
    SCOPED_TRACE(at);
    const auto faulty = std::make_shared<FaultyFileSystem>(at, Fault::io);
    EXPECT_THAT(message_of(ErrorCode::io, [&] { make_root(*faulty, dir_ / "a/b"); }),
                testing::HasSubstr("injected"));
    std::filesystem::remove_all(dir_ / "a");
  }
  put(dir_ / "file");
  EXPECT_THAT(message_of(ErrorCode::io, [&] { make_root(*files_, dir_ / "file"); }),
              testing::HasSubstr("file"));
  EXPECT_THAT(message_of(ErrorCode::io, [&] { make_root(*files_, dir_ / "file/below"); }),
              testing::HasSubstr("below"));
}

TEST_F(RootTest, RemoveTreeTakesFoldersInFoldersAndNothing) {
  remove_tree(*files_, dir_ / "not there");
  std::filesystem::create_directories(dir_ / "a/b/c");
  put(dir_ / "a/x");
  put(dir_ / "a/b/y");
  remove_tree(*files_, dir_ / "a");
  EXPECT_THAT(names(), IsEmpty());
}

// Two processes remove the same tree: whatever one of them finds done by the other is done.
TEST_F(RootTest, RemoveTreeMayBeOvertakenAtEveryOperation) {
  const std::filesystem::path tree = dir_ / "a";
  for (const bool whole : {true, false}) {
    int most = 0;
    for (int at = 0; at <= most; ++at) {  // the first time nobody interferes
      SCOPED_TRACE(testing::Message() << "operation " << at << (whole ? ", the tree" : ", one"));
      std::filesystem::create_directories(tree / "b");
      for (const char* name : {"x", "y", "b/z"}) put(tree / name);
      int operations = 0;
      HookedFileSystem files([&](std::string_view, const std::filesystem::path& path) {
        if (++operations == at) std::filesystem::remove_all(whole ? tree : path);
      });
      remove_tree(files, tree);
      EXPECT_THAT(names(), IsEmpty());
      most = std::max(most, operations);
    }
    EXPECT_GE(most, 9);
  }
}

TEST_F(RootTest, RemoveTreeTakesWhatIsAddedMeanwhileButNotForEver) {
  int added = 0, most = 3;
  HookedFileSystem files([&](std::string_view operation, const std::filesystem::path& path) {
    if (operation == "remove" && path == dir_ / "a" && added < most) {
      put(path / std::to_string(added++));
    }
  });
  files_->make_directory(dir_ / "a");
  remove_tree(files, dir_ / "a");
  EXPECT_EQ(added, 3);
  EXPECT_THAT(names(), IsEmpty());

  most = 1'000'000;
  files_->make_directory(dir_ / "a");
  EXPECT_THAT(message_of(ErrorCode::io, [&] { remove_tree(files, dir_ / "a"); }),
              testing::HasSubstr("not empty"));
}

TEST_F(RootTest, RemovedCheckpointsVanishAtOnce) {
  files_->make_directory(dir_ / "step-00000001");
  put(dir_ / "step-00000001/manifest.json");
  const auto faulty = std::make_shared<FaultyFileSystem>(2, Fault::io);  // rename, then sync fails
  EXPECT_THROW(remove_checkpoint(*faulty, dir_.path(), {1, 1}), Error);
  EXPECT_THAT(committed_names(*files_, dir_.path()), IsEmpty());
  remove_checkpoint(*files_, dir_.path(), {1, 1});
  EXPECT_EQ(collect_root_garbage(*files_, dir_.path()).removed.size(), 1u);
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(RootTest, CollectionGoesOnAfterAnError) {
  const std::string id(32, 'a'), other(32, 'b');
  for (const std::string& name : {".trash-x." + id, ".trash-x." + other}) {
    files_->make_directory(dir_ / name);
  }
  const auto faulty = std::make_shared<FaultyFileSystem>(3, Fault::io);  // list, sync, removal
  EXPECT_THROW(collect_root_garbage(*faulty, dir_.path()), Error);
  EXPECT_EQ(names().size(), 1u);
}

// A checkpoint may have been renamed to any of them by a process that could not sync the root.
TEST_F(RootTest, CollectionSyncsTheRootBeforeItRemovesDirectories) {
  const std::string id(32, 'a');
  const std::string attempt = ".step-00000001." + id + ".tmp";
  for (const std::string& name : {attempt, ".trash-step-00000001." + id}) {
    SCOPED_TRACE(name);
    files_->make_directory(dir_ / name);
    put(dir_ / name / "file");
    std::vector<std::string> done;
    HookedFileSystem files([&](std::string_view operation, const std::filesystem::path& path) {
      done.push_back(std::string(operation) + " " + path.filename().string());
    });
    collect_root_garbage(files, dir_.path());
    const auto sync =
        std::find(done.begin(), done.end(), "sync directory " + dir_.path().filename().string());
    const std::string first = name == attempt ? "remove " : "rename ";
    const auto removal = std::find(done.begin(), done.end(), first + name);
    EXPECT_LT(sync, removal);
    EXPECT_NE(removal, done.end());
    EXPECT_THAT(names(), IsEmpty());
  }
}

}  // namespace
}  // namespace shardwise::detail
