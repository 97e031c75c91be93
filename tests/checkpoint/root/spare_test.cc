// A removed checkpoint leaves its files to the next save: detail/root/spare.h, and its use by a
// manager. Faults, kills and power losses are in manager_faults_test.cc, manager_killed_test.cc and
// crash_states_test.cc.

#include "shardwise/checkpoint/detail/root/spare.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "testing/faulty_file_system.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/root_names.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<std::string> entries(const std::filesystem::path& directory) {
  return root_names(directory);
}

// Where files cannot be reused each test expects that all is as it would be without.
bool reuses_files(const std::filesystem::path& directory) {
  write_file(directory / "probe", "x");
  const bool reuses = posix_file_system()->reuse(directory / "probe", Caching::cached) != nullptr;
  std::filesystem::remove(directory / "probe");
  return reuses;
}

class SpareTest : public testing::Test {
 protected:
  static constexpr detail::StepName kStep{1, 1};

  std::filesystem::path make_trash(const char* name) {
    const std::filesystem::path trash = dir_ / name;
    std::filesystem::create_directories(trash / "notes/deeper");
    write_file(trash / "manifest.json", "{}");
    write_file(trash / "index.h5", "index");
    write_file(trash / "shards-00000-of-00002.h5", "elements");
    write_file(trash / "shards-00001-of-00002.h5", "");
    return trash;
  }

  TempDir dir_;
  const std::shared_ptr<FileSystem> files_ = posix_file_system();
  const bool reuses_ = reuses_files(dir_.path());
};

TEST_F(SpareTest, KeepsDataFilesEmptiedAndGivesThemOnce) {
  detail::Spare spare(*files_);
  EXPECT_FALSE(spare.become(dir_ / "attempt"));
  spare.keep(make_trash("trash"), kStep);
  ASSERT_EQ(spare.become(dir_ / "attempt"), reuses_);
  EXPECT_FALSE(spare.become(dir_ / "another"));
  if (!reuses_) {
    EXPECT_THAT(entries(dir_.path()), IsEmpty());
    return;
  }
  EXPECT_THAT(entries(dir_.path()), ElementsAre("attempt"));
  EXPECT_THAT(entries(dir_ / "attempt"),
              ElementsAre("shards-00000-of-00002.h5", "shards-00001-of-00002.h5"));
  EXPECT_EQ(text_of(dir_ / "attempt/shards-00000-of-00002.h5"), std::string(8, '\0'));
  EXPECT_EQ(text_of(dir_ / "attempt/shards-00001-of-00002.h5"), "");
}

TEST_F(SpareTest, IsRemovedByTheNextOneAndAtTheEnd) {
  {
    detail::Spare spare(*files_);
    spare.keep(make_trash("first"), kStep);
    spare.keep(make_trash("second"), kStep);
    EXPECT_THAT(entries(dir_.path()), SizeIs(reuses_ ? 1 : 0));
  }
  EXPECT_THAT(entries(dir_.path()), IsEmpty());
}

TEST_F(SpareTest, OutlivesAForkedChildsCopy) {
  std::optional<detail::Spare> spare(std::in_place, *files_);
  spare->keep(make_trash("trash"), kStep);
  const pid_t child = ::fork();
  if (child == 0) {
    spare.reset();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(spare->become(dir_ / "attempt"), reuses_);
}

TEST_F(SpareTest, IsNoneWhereNoFileCanBeReusedOrAllIsGone) {
  detail::Spare spare(*files_);
  const auto trash = make_trash("trash");
  for (const char* name : {"shards-00000-of-00002.h5", "shards-00001-of-00002.h5"}) {
    std::filesystem::create_hard_link(trash / name, dir_ / name);
  }
  spare.keep(trash, kStep);
  EXPECT_FALSE(std::filesystem::exists(trash));
  EXPECT_EQ(text_of(dir_ / "shards-00000-of-00002.h5"), "elements");
  EXPECT_FALSE(spare.become(dir_ / "attempt"));

  spare.keep(dir_ / "never there", kStep);
  EXPECT_FALSE(spare.become(dir_ / "attempt"));

  spare.keep(make_trash("trash"), kStep);
  for (const std::string& name : entries(dir_.path())) {
    if (name.front() == '.') std::filesystem::remove_all(dir_ / name);
  }
  EXPECT_FALSE(spare.become(dir_ / "attempt"));
}

TEST_F(SpareTest, IsNoneAfterAnErrorAndLeavesNothing) {
  std::int64_t failed = 0;
  for (std::int64_t at = 1;; ++at) {
    SCOPED_TRACE(at);
    const auto files = std::make_shared<FaultyFileSystem>(at, Fault::io);
    detail::Spare spare(*files);
    try {
      spare.keep(make_trash("trash"), kStep);
      break;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::io);
      ++failed;
    }
    EXPECT_FALSE(spare.become(dir_ / "attempt"));
    EXPECT_THAT(entries(dir_.path()), IsEmpty());
  }
  EXPECT_GT(failed, 8);
}

// Two saves of a manager that keeps one checkpoint, then whatever else.
class ReusedFiles : public SpareTest {
 protected:
  static std::vector<HostTensor> model(std::uint64_t seed, std::int64_t rows = 700) {
    return {host_tensor("w", DType::f32, {rows, 200}, "data=4,model=2", "data,model", Values::noise,
                        seed),
            host_tensor("b", DType::bf16, {200}, "data=4,model=2", "model", Values::ramp, seed)};
  }

  SaveStats save(std::int64_t step, const std::vector<HostTensor>& tensors,
                 SaveOptions options = {}) {
    SaveStats stats = manager_->save(step, sources_of(tensors), std::move(options));
    EXPECT_EQ(stats.cleanup_error, "");
    EXPECT_TRUE(verify_checkpoint(stats.directory, {.threads = 1}).ok());
    EXPECT_TRUE(holds(CheckpointReader(stats.directory, {.threads = 1}), tensors));
    return stats;
  }

  // A save into files of their own.
  std::filesystem::path save_alone(const std::vector<HostTensor>& tensors, SaveOptions options) {
    CheckpointManager alone(dir_ / "alone");
    return alone.save(next_alone_++, sources_of(tensors), std::move(options)).directory;
  }

  // The number of shard files that were created.
  std::int64_t created_ = 0;
  const std::shared_ptr<FileSystem> hooked_ = std::make_shared<HookedFileSystem>(
      [this](std::string_view operation, const std::filesystem::path& path) {
        if (operation == "create" && path.filename().string().starts_with("shards-")) ++created_;
      });
  const std::filesystem::path root_ = dir_ / "root";
  std::optional<CheckpointManager> manager_{
      std::in_place, root_,
      ManagerOptions{.keep = {.last = 1},
                     .write = {.increments = false, .stats = false},
                     .file_system = hooked_}};
  std::int64_t next_alone_ = 0;
};

TEST_F(ReusedFiles, HoldTheSameBytesAsNewOnes) {
  std::int64_t step = 0;
  for (const Codec codec : {Codec::none, Codec::zstd}) {
    for (const std::int64_t rows : {700, 700, 300, 2000, 0, 700}) {
      SCOPED_TRACE(testing::Message() << name(codec) << ", " << rows << " rows");
      const auto tensors = model(static_cast<std::uint64_t>(++step), rows);
      const SaveStats stats = save(step, tensors, {.codec = codec});
      const auto alone = save_alone(tensors, {.codec = codec});
      EXPECT_EQ(entries(stats.directory), entries(alone));
      for (const char* file : {"shards-00000-of-00001.h5", "index.h5"}) {
        EXPECT_TRUE(text_of(stats.directory / file) == text_of(alone / file)) << file;
      }
    }
  }
  EXPECT_EQ(created_, reuses_ ? 2 : 12) << "the first two found nothing to be reused";
}

TEST_F(ReusedFiles, LieHiddenBetweenSavesUntilTheManagerEnds) {
  save(1, model(1));
  EXPECT_THAT(entries(root_), ElementsAre("step-00000001"));
  save(2, model(2));
  const std::vector<std::string> names = entries(root_);
  ASSERT_THAT(names, SizeIs(reuses_ ? 2 : 1));
  EXPECT_EQ(names.back(), "step-00000002");
  if (reuses_) {
    EXPECT_THAT(names.front(), StartsWith(".trash-step-00000001."));
    EXPECT_THAT(entries(root_ / names.front()), ElementsAre("shards-00000-of-00001.h5"));
  }
  manager_.reset();
  EXPECT_THAT(entries(root_), ElementsAre("step-00000002"));
}

TEST_F(ReusedFiles, AreNotKeptWhereNobodyWantsThem) {
  manager_.emplace(
      root_, ManagerOptions{.keep = {.last = 1},
                            .write = {.reuse_files = false, .increments = false, .stats = false}});
  save(1, model(1));
  save(2, model(2));
  EXPECT_THAT(entries(root_), ElementsAre("step-00000002"));
  save(2, model(3), {.existing = Existing::replace});
  EXPECT_THAT(entries(root_), ElementsAre("step-00000002.g2"));
}

TEST_F(ReusedFiles, OfAReplacedGenerationServeToo) {
  for (const std::uint64_t seed : {1u, 2u, 3u})
    save(5, model(seed), {.existing = Existing::replace});
  EXPECT_EQ(created_, reuses_ ? 2 : 3);
  EXPECT_EQ(manager_->step(5).generation, 3);
}

// With other numbers of writers, all or some shard files have other names.
TEST_F(ReusedFiles, OfAnotherNumberOfWritersLeaveNothingBehind) {
  std::int64_t step = 0;
  for (const std::int64_t writers : {1, 1, 2, 2, 2, 1, 4, 4}) {
    SCOPED_TRACE(testing::Message() << "step " << ++step << ", " << writers << " writers");
    const SaveStats stats = save(step, model(1), {.writers = writers});
    EXPECT_THAT(entries(stats.directory), SizeIs(2 + writers));
  }
}

TEST_F(ReusedFiles, AreNoneThatSomebodyHasOpenOrLinked) {
  const auto link = dir_ / "backup";
  const std::filesystem::path file = save(1, model(1)).directory / "shards-00000-of-00001.h5";
  std::filesystem::create_hard_link(file, link);
  std::string saved = text_of(link);
  save(2, model(2));
  save(3, model(3));
  EXPECT_TRUE(text_of(link) == saved);
  EXPECT_EQ(created_, 3);

  const std::filesystem::path now = manager_->step(3).directory / "shards-00000-of-00001.h5";
  saved = text_of(now);
  std::ifstream open(now, std::ios::binary);
  save(4, model(1));
  save(5, model(2));
  EXPECT_TRUE(std::string(std::istreambuf_iterator<char>(open), {}) == saved);
}

TEST_F(ReusedFiles, ThatACleanUpRemovesAreMadeAnew) {
  for (const std::int64_t step : {1, 2, 3, 4}) {
    save(step, model(static_cast<std::uint64_t>(step)));
    const CheckpointManager next(root_);
    EXPECT_THAT(entries(root_), SizeIs(1));
  }
  EXPECT_EQ(created_, 4);
}

// Reused files are lost with the save that fails; the one after that makes new files.
TEST_F(ReusedFiles, GoWithASaveThatFails) {
  save(1, model(1));
  save(2, model(2));
  std::vector<TensorSource> sources = sources_of(model(3));
  const HostTensor first = model(3)[0];
  sources[0] = callback_tensor(first.name, first.spec, [](const Box&, std::span<std::byte>) {
    throw std::runtime_error("no");
  });
  EXPECT_THROW(manager_->save(3, std::move(sources)), std::runtime_error);
  EXPECT_THAT(entries(root_), ElementsAre("step-00000002"));
  save(4, model(1));
  EXPECT_EQ(created_, reuses_ ? 3 : 4);
}

// The save may lack the room that they take.
TEST_F(ReusedFiles, GoWithASaveThatCannotBegin) {
  bool full = false;
  const auto files = std::make_shared<HookedFileSystem>(
      [&](std::string_view operation, const std::filesystem::path& path) {
        if (full && operation == "create" && path.extension() == ".new") {
          throw Error(ErrorCode::io, "injected: no room for a lease");
        }
      });
  manager_.emplace(root_, ManagerOptions{.keep = {.last = 1},
                                         .write = {.increments = false, .stats = false},
                                         .file_system = files});
  save(1, model(1));
  save(2, model(2));
  full = true;
  EXPECT_THROW(manager_->save(3, sources_of(model(3))), Error);
  EXPECT_THAT(entries(root_), ElementsAre("step-00000002"));
}

// A job may have moved a step elsewhere and left a link.
TEST_F(ReusedFiles, AreNotThoseThatALinkLeadsTo) {
  const auto tensors = model(1);
  save(1, tensors);
  std::filesystem::rename(root_ / "step-00000001", dir_ / "archived");
  std::filesystem::create_directory_symlink(dir_ / "archived", root_ / "step-00000001");
  for (const std::int64_t step : {2, 3, 4}) save(step, model(2));
  EXPECT_EQ(entries(dir_ / "archived").size(), 3u);
  std::filesystem::rename(dir_ / "archived", dir_ / "step-00000001");
  EXPECT_TRUE(verify_checkpoint(dir_ / "step-00000001").ok());
  EXPECT_TRUE(holds(CheckpointReader(dir_ / "step-00000001"), tensors));
}

// A program that copies a step finds an end to it and not other bytes.
TEST_F(ReusedFiles, AreNotFoundByWhoeverIsInTheOldDirectory) {
  save(1, model(1));
  const int old = ::open((root_ / "step-00000001").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(old, 0);
  for (const std::int64_t step : {2, 3, 4}) {
    save(step, model(2));
    for (const char* name : {"shards-00000-of-00001.h5", "index.h5", "manifest.json"}) {
      EXPECT_EQ(::faccessat(old, name, F_OK, 0), -1) << name;
    }
  }
  ::close(old);
  EXPECT_EQ(created_, reuses_ ? 2 : 4);
}

// One step's rights are not the next one's.
TEST_F(ReusedFiles, HaveTheRightsOfNewOnes) {
  const auto permissions = [](const std::filesystem::path& path) {
    return std::filesystem::status(path).permissions();
  };
  const auto path = save(1, model(1)).directory / "shards-00000-of-00001.h5";
  const auto usual = permissions(path), usual_of_directory = permissions(path.parent_path());
  std::filesystem::permissions(path, std::filesystem::perms::all);
  std::filesystem::permissions(path.parent_path(), std::filesystem::perms::owner_all);
  for (const std::int64_t step : {2, 3, 4}) {
    const auto directory = save(step, model(2)).directory;
    EXPECT_EQ(permissions(directory), usual_of_directory);
    EXPECT_EQ(permissions(directory / "shards-00000-of-00001.h5"), usual);
  }
}

// Each save fails to remove the files that the manager has kept.
TEST_F(ReusedFiles, ThatCannotBeRemovedDoNotKeepOthers) {
  const auto files = std::make_shared<HookedFileSystem>(
      [](std::string_view operation, const std::filesystem::path& path) {
        if (operation == "remove" && path.filename() == "stuck") {
          throw Error(ErrorCode::io, "injected: it cannot be removed");
        }
      });
  manager_.emplace(root_, ManagerOptions{.keep = {.last = 1},
                                         .write = {.increments = false, .stats = false},
                                         .file_system = files});
  save(1, model(1));
  std::filesystem::create_directory(root_ / "step-00000001/stuck");
  std::string error;
  for (const std::int64_t step : {2, 3, 4, 5}) {
    error += manager_->save(step, sources_of(model(2))).cleanup_error;
    EXPECT_LE(entries(root_).size(), 3u) << "the step, a spare, and a stuck file";
  }
  EXPECT_THAT(error, HasSubstr("injected"));
}

}  // namespace
}  // namespace shardwise
