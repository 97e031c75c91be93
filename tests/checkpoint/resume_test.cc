// Attempts whose processes were killed, and that the next save with the same key goes on with.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <mutex>
#include <set>

#include "shardwise/checkpoint/detail/internals.h"
#include "shardwise/checkpoint/manager.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/reshard.h"
#include "shardwise/checkpoint/verify.h"
#include "testing/errors.h"
#include "testing/group_checkpoint.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/root_names.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr int kKilled = 9;

const std::vector<HostTensor>& model() {
  static const std::vector<HostTensor> tensors{
      host_tensor("a", DType::f32, {90, 300}, "a=3,b=2", "a,b"),
      host_tensor("b", DType::i64, {50}, "a=3,b=2", "b"),
      host_tensor("c", DType::bf16, {64, 700}, "a=3,b=2", "b,a", Values::ramp)};
  return tensors;
}

ManagerOptions options_with(std::shared_ptr<FileSystem> files = nullptr) {
  ManagerOptions options;
  options.write_stats = false;
  options.threads = 1;
  options.file_system = std::move(files);
  return options;
}

detail::RootTerms key_of(std::string key) { return {.resume_key = std::move(key)}; }

/// Which files were made anew, by name.
class Created {
 public:
  std::shared_ptr<FileSystem> file_system() {
    return std::make_shared<HookedFileSystem>(
        [this](std::string_view operation, const fs::path& path) {
          const std::lock_guard lock(mutex_);
          if (operation == "create") names_.insert(path.filename());
        });
  }
  const std::set<std::string>& names() const { return names_; }

 private:
  std::mutex mutex_;
  std::set<std::string> names_;
};

/// Ends the process, as SIGKILL does, instead of operation number `at`, from 1 on.
std::shared_ptr<FileSystem> killing(int at) {
  return std::make_shared<HookedFileSystem>(
      [at, count = 0](std::string_view, const fs::path&) mutable {
        if (++count == at) ::_exit(kKilled);
      });
}

/// Whether the work was killed, in a process of its own.
bool is_killed(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      work();
      ::_exit(0);
    } catch (...) {
      ::_exit(1);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == kKilled));
  return WEXITSTATUS(status) == kKilled;
}

/// The shard files that attempts in the root have noted as whole.
std::set<std::string> whole_files(const fs::path& root) {
  std::set<std::string> names;
  if (!fs::exists(root)) return names;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    const fs::path& path = entry.path();
    if (path.extension() == ".whole" && fs::file_size(path) == 32) names.insert(path.stem());
  }
  return names;
}

std::map<std::string, std::vector<std::byte>> shard_files(const fs::path& step) {
  std::map<std::string, std::vector<std::byte>> files;
  for (const auto& entry : fs::directory_iterator(step)) {
    if (entry.path().extension() == ".h5")
      files[entry.path().filename()] = file_bytes(entry.path());
  }
  return files;
}

std::vector<std::string> left_in(const fs::path& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory)) {
    names.push_back(entry.path().filename());
  }
  return names;
}

/// A root that holds this one step, whole, and nothing else.
void expect_only(const fs::path& root, const fs::path& step, const fs::path& reference) {
  EXPECT_THAT(root_names(root), testing::ElementsAre(step.filename().string()));
  EXPECT_TRUE(shard_files(step) == shard_files(reference));
  EXPECT_THAT(left_in(step), Each(Not(AllOf(HasSubstr("whole"), HasSubstr("resume")))));
  EXPECT_TRUE(verify_checkpoint(step).ok());
}

TEST(Resume, KeepsWhatIsWholeWhereverItWasKilled) {
  const TempDir dir;
  const SaveOptions save{.writers = 5};
  const fs::path reference = CheckpointManager(dir / "reference", options_with())
                                 .save(1, sources_of(model()), save)
                                 .directory;
  std::size_t most_kept = 0;
  for (int at = 1;; ++at) {
    SCOPED_TRACE(at);
    const fs::path root = dir / std::to_string(at);
    const bool killed = is_killed([&] {
      detail::Internals::manager(root, options_with(killing(at)), key_of("k"))
          .save(1, sources_of(model()), save);
    });
    if (!killed) break;
    const std::set<std::string> kept = whole_files(root);
    most_kept = std::max(most_kept, kept.size());
    Created created;
    CheckpointManager manager =
        detail::Internals::manager(root, options_with(created.file_system()), key_of("k"));
    const bool committed_before = fs::exists(root / "step-00000001");
    const fs::path step = committed_before ? root / "step-00000001"
                                           : manager.save(1, sources_of(model()), save).directory;
    for (const std::string& name : kept) EXPECT_FALSE(created.names().contains(name)) << name;
    expect_only(root, step, reference);
    if (HasFailure()) return;
  }
  EXPECT_EQ(most_kept, shard_files(reference).size() - 1) << "all but index.h5";
}

TEST(Resume, IsForTheSameKeyAndWholeFilesAlone) {
  const TempDir dir;
  const fs::path root = dir / "root";
  const SaveOptions save{.writers = 5};
  const auto leave_attempt = [&] {
    for (int at = 1; whole_files(root).size() < 2; ++at) {
      fs::remove_all(root);
      ASSERT_TRUE(is_killed([&] {
        detail::Internals::manager(root, options_with(killing(at)), key_of("k"))
            .save(1, sources_of(model()), save);
      }));
    }
  };
  for (const char* key : {"", "another"}) {
    fs::remove_all(root);
    leave_attempt();
    Created created;
    CheckpointManager manager =
        detail::Internals::manager(root, options_with(created.file_system()), key_of(key));
    EXPECT_THAT(left_in(root), IsEmpty());
    manager.save(1, sources_of(model()), save);
    EXPECT_TRUE(created.names().contains("shards-00000-of-00005.h5"));
  }
  // A file that is not what was noted is written again.
  fs::remove_all(root);
  leave_attempt();
  const std::string name = *whole_files(root).begin();
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (entry.path().filename() == name)
      fs::resize_file(entry.path(), fs::file_size(entry.path()) - 1);
  }
  Created created;
  CheckpointManager manager =
      detail::Internals::manager(root, options_with(created.file_system()), key_of("k"));
  const fs::path step = manager.save(1, sources_of(model()), save).directory;
  EXPECT_TRUE(created.names().contains(name));
  EXPECT_TRUE(verify_checkpoint(step).ok());
  EXPECT_TRUE(holds(CheckpointReader(step), model()));
}

// Rank 2 dies with its part half written; the job is begun again.
TEST(Resume, OfAGroupKeepsWhatTheLivingHaveWritten) {
  const TempDir dir;
  GroupSaveOptions options{.ranks = 3};
  options.manager = options_with();
  options.terms = [](int) { return key_of("k"); };
  const GroupOutcome reference = group_save(dir / "reference", 1, sources_of(model()), options);
  ASSERT_TRUE(reference.none_failed());
  const fs::path root = dir / "root";
  GroupSaveOptions dying = options;
  dying.faults = [](int rank) { return rank == 2 ? SocketFaults{.stop = 1} : SocketFaults(); };
  const GroupOutcome failed = group_save(root, 1, sources_of(model()), dying);
  EXPECT_TRUE(failed.all_failed());
  EXPECT_THAT(failed.errors[0],
              AllOf(HasSubstr("rank 2"), HasSubstr("keeps what was written, for when the same")));
  const std::set<std::string> kept = whole_files(root);
  EXPECT_GE(kept.size(), 2u);

  Created created;
  GroupSaveOptions again = options;
  again.file_system = [files = created.file_system()](int) { return files; };
  const GroupOutcome outcome = group_save(root, 1, sources_of(model()), again);
  EXPECT_THAT(outcome.errors, Each(""));
  for (const std::string& name : kept) EXPECT_FALSE(created.names().contains(name)) << name;
  expect_only(root, outcome.stats[0].directory, reference.stats[0].directory);
}

TEST(Resume, OfAReshardGivesWhatItWouldHaveGiven) {
  const TempDir dir;
  const fs::path source =
      CheckpointManager(dir / "source", options_with()).save(3, sources_of(model())).directory;
  const auto reshard = [&](const fs::path& root, std::shared_ptr<FileSystem> files) {
    ReshardOptions options;
    options.save.writers = 4;
    options.threads = 1;
    options.file_system = std::move(files);
    return reshard_checkpoint(source, root, Mesh::parse("a=2,b=2"), SpecRules(), options).directory;
  };
  const fs::path reference = reshard(dir / "reference", nullptr);
  bool has_kept = false;
  for (int at = 20; at < 80; at += 7) {
    SCOPED_TRACE(at);
    const fs::path root = dir / std::to_string(at);
    if (!is_killed([&] { reshard(root, killing(at)); })) break;
    if (fs::exists(root / "step-00000003")) break;
    const std::set<std::string> kept = whole_files(root);
    has_kept = has_kept || !kept.empty();
    Created created;
    const fs::path step = reshard(root, created.file_system());
    for (const std::string& name : kept) EXPECT_FALSE(created.names().contains(name)) << name;
    expect_only(root, step, reference);
  }
  EXPECT_TRUE(has_kept);
}

TEST(Resume, OfASaveThatItsProgressEndsKeepsWholeFiles) {
  const TempDir dir;
  const SaveOptions save{.writers = 5};
  const fs::path reference = CheckpointManager(dir / "reference", options_with())
                                 .save(1, sources_of(model()), save)
                                 .directory;
  const fs::path root = dir / "root";
  SaveOptions ended = save;
  ended.progress = [](const Progress& progress) {
    if (2 * progress.done_bytes > progress.total_bytes) {
      throw Error(ErrorCode::cancelled, "reshard: interrupted");
    }
  };
  const std::string message = message_of(ErrorCode::cancelled, [&] {
    detail::Internals::manager(root, options_with(), key_of("k"))
        .save(1, sources_of(model()), ended);
  });
  const std::size_t kept = whole_files(root).size();
  EXPECT_GE(kept, 2u);
  EXPECT_THAT(
      message,
      AllOf(HasSubstr("reshard: interrupted; "),
            HasSubstr("keeps what was written, for when the same is begun again: whole are " +
                      std::to_string(kept) + " shard files")));
  const SaveStats stats = detail::Internals::manager(root, options_with(), key_of("k"))
                              .save(1, sources_of(model()), save);
  EXPECT_EQ(stats.kept_files, static_cast<std::int64_t>(kept));
  EXPECT_GT(stats.kept_bytes, 0u);
  expect_only(root, stats.directory, reference);
  // Without a key nothing stays.
  const fs::path other = dir / "other";
  EXPECT_EQ(
      message_of(
          ErrorCode::cancelled,
          [&] { CheckpointManager(other, options_with()).save(1, sources_of(model()), ended); }),
      "reshard: interrupted");
  EXPECT_THAT(left_in(other), IsEmpty());
}

TEST(Resume, OfAReshardIsForTheSameEdits) {
  const TempDir dir;
  // Tensors that change places have the same boxes and dtypes.
  const std::vector<HostTensor> twins{
      host_tensor("a", DType::f32, {90, 300}, "a=3", "a,-", Values::noise, 1),
      host_tensor("b", DType::f32, {90, 300}, "a=3", "a,-", Values::noise, 2)};
  const fs::path source =
      CheckpointManager(dir / "source", options_with()).save(3, sources_of(twins)).directory;
  const auto reshard = [&](bool swapped, std::shared_ptr<FileSystem> files) {
    ReshardOptions options;
    options.save.writers = 3;
    options.threads = 1;
    options.file_system = std::move(files);
    if (swapped) options.edits.renames = {{"a", "b"}, {"b", "a"}};
    return reshard_checkpoint(source, dir / "root", Mesh::parse("a=3"), SpecRules(), options);
  };
  for (int at = 1; whole_files(dir / "root").size() < 2; ++at) {
    fs::remove_all(dir / "root");
    ASSERT_TRUE(is_killed([&] { reshard(false, killing(at)); }));
  }
  const SaveStats stats = reshard(true, nullptr);
  EXPECT_EQ(stats.kept_files, 0);
  std::vector<HostTensor> swapped{twins[1], twins[0]};
  swapped[0].name = "a";
  swapped[1].name = "b";
  EXPECT_TRUE(holds(CheckpointReader(stats.directory), swapped));
}

TEST(Resume, OfAReshardThatPadsGivesTheSameBytes) {
  const TempDir dir;
  const std::vector<HostTensor> one{
      host_tensor("a", DType::f32, {90, 300}, "a=3", "a,-", Values::noise, 1)};
  const fs::path source =
      CheckpointManager(dir / "source", options_with()).save(3, sources_of(one)).directory;
  const auto reshard = [&](const char* root, std::int64_t rows, std::shared_ptr<FileSystem> files) {
    ReshardOptions options;
    options.save.writers = 3;
    options.threads = 1;
    options.file_system = std::move(files);
    options.edits.resizes = {{"a", TensorEdits::Resize::How::pad, {rows, -1}}};
    return reshard_checkpoint(source, dir / root, Mesh::parse("a=3"), SpecRules(), options);
  };
  for (int at = 1; whole_files(dir / "root").size() < 2; ++at) {
    fs::remove_all(dir / "root");
    ASSERT_TRUE(is_killed([&] { reshard("root", 100, killing(at)); }));
  }
  fs::copy(dir / "root", dir / "other", fs::copy_options::recursive);
  EXPECT_EQ(reshard("other", 101, nullptr).kept_files, 0) << "of another size";
  const SaveStats stats = reshard("root", 100, nullptr),
                  straight = reshard("straight", 100, nullptr);
  EXPECT_GT(stats.kept_files, 0);
  for (const auto& file : fs::directory_iterator(straight.directory)) {
    if (!file.path().filename().string().starts_with("shards-")) continue;
    EXPECT_EQ(file_bytes(stats.directory / file.path().filename()), file_bytes(file.path()));
  }
}

}  // namespace
}  // namespace shardwise
