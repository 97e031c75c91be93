#include "shardwise/checkpoint/detail/root/marks/pin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/marks/lease.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "testing/errors.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/root_names.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;

class Pins : public testing::Test {
 protected:
  void save(CheckpointManager& manager, std::int64_t step, SaveOptions options = {}) {
    manager.save(step, {tensor_.source()}, options);
  }

  std::vector<std::int64_t> steps() {
    std::vector<std::int64_t> numbers;
    for (const StepName& name : committed_names(*files_, dir_.path())) {
      numbers.push_back(name.step);
    }
    return numbers;
  }

  std::vector<std::string> hidden() {
    std::vector<std::string> names;
    for (const std::string& name : root_names(dir_.path())) {
      if (name.front() == '.') names.push_back(name);
    }
    return names;
  }

  void expect_whole(const CheckpointReader& reader) {
    std::vector<std::byte> out(tensor_.data->size());
    reader.read("x", Box::whole(tensor_.spec.shape), out);
    EXPECT_EQ(out, *tensor_.data);
  }

  const TempDir dir_;
  const HostTensor tensor_ = host_tensor("x", DType::f32, {100, 10}, "2", "0,-");
  const std::shared_ptr<FileSystem> files_ = posix_file_system();
  std::vector<std::filesystem::path> leftovers_;
};

TEST_F(Pins, RetentionLeavesWhatIsBeingRead) {
  CheckpointManager manager(dir_.path(), {.keep = {.last = 1}});
  save(manager, 1);
  {
    const CheckpointReader pinned(manager.step(1).directory);
    EXPECT_TRUE(pinned.pinned());
    save(manager, 2);
    save(manager, 3);
    EXPECT_THAT(steps(), ElementsAre(1, 3)) << "2 is nobody's";
    expect_whole(CheckpointReader(manager.step(1).directory));
    manager.collect_garbage();
    EXPECT_EQ(hidden().size(), 1u) << "the pin of a live process stays";
  }
  EXPECT_THAT(hidden(), IsEmpty());
  save(manager, 4);
  EXPECT_THAT(steps(), ElementsAre(4));
}

TEST_F(Pins, AReplacedGenerationStaysWhileItIsRead) {
  CheckpointManager manager(dir_.path());
  save(manager, 1);
  {
    const CheckpointReader pinned(manager.step(1).directory, {.pin = true});
    save(manager, 1, {.existing = Existing::replace});
    EXPECT_THAT(steps(), ElementsAre(1, 1)) << "two generations";
    EXPECT_EQ(manager.step(1).generation, 2);
    EXPECT_THAT(manager.collect_garbage().kept, Contains("step-00000001"));
    EXPECT_THAT(steps(), ElementsAre(1, 1));
  }
  EXPECT_THAT(manager.collect_garbage().removed, Contains("step-00000001"));
  EXPECT_THAT(steps(), ElementsAre(1));
}

// A full disk, say: it is no reason not to read.
TEST_F(Pins, ReadingGoesOnWhereNoPinCanBeMade) {
  CheckpointManager manager(dir_.path());
  save(manager, 1);
  int refused = 0;
  for (const std::string refuses : {"create", "rename"}) {
    const auto files = std::make_shared<HookedFileSystem>(
        [&](std::string_view operation, const std::filesystem::path&) {
          if (operation != refuses) return;
          ++refused;
          throw Error(ErrorCode::io, "no space left");
        });
    const CheckpointReader reader(manager.step(1).directory, {.file_system = files});
    EXPECT_FALSE(reader.pinned());
    expect_whole(reader);
  }
  EXPECT_EQ(refused, 2);
  EXPECT_FALSE(CheckpointReader(manager.step(1).directory, {.pin = false}).pinned());
}

TEST_F(Pins, RemoveIsTheUsersWord) {
  CheckpointManager manager(dir_.path());
  save(manager, 1);
  const CheckpointReader pinned(manager.step(1).directory, {.pin = true});
  manager.remove(1);
  EXPECT_THAT(steps(), IsEmpty());
  expect_whole(pinned);
}

TEST_F(Pins, OfTheDeadHoldNothing) {
  CheckpointManager manager(dir_.path(), {.keep = {.last = 1}, .write = {.reuse_files = false}});
  save(manager, 1);
  LeaseOwner dead = this_process();
  dead.boot = "00000000-0000-0000-0000-000000000000";  // of this machine, an earlier start of it
  const std::string name = pin_name("step-00000001", new_id());
  std::ofstream(dir_ / name) << print_lease(dead);
  std::ofstream(dir_ / pin_name("step-00000001", new_id())) << "not a lease";
  EXPECT_FALSE(is_pinned(*files_, dir_.path(), {1, 1}));
  save(manager, 2);
  EXPECT_THAT(steps(), ElementsAre(2));
  EXPECT_EQ(hidden().size(), 2u);
  EXPECT_THAT(manager.collect_garbage().removed, Contains(name));
  EXPECT_THAT(hidden(), IsEmpty());
}

TEST_F(Pins, ArePerCheckpoint) {
  CheckpointManager manager(dir_.path());
  save(manager, 1);
  save(manager, 10);
  const Pin pin(*files_, manager.step(10).directory);
  EXPECT_TRUE(is_pinned(*files_, dir_.path(), {10, 1}));
  EXPECT_FALSE(is_pinned(*files_, dir_.path(), {1, 1}));
  EXPECT_FALSE(is_pinned(*files_, dir_.path(), {10, 2}));
}

// A reader comes between the look at the pins and the rename: the step that it opened must stay.
TEST_F(Pins, OneMadeWhileACheckpointLosesItsNameBringsItBack) {
  CheckpointManager manager(dir_.path());
  save(manager, 1);
  std::optional<Pin> pin;
  HookedFileSystem hooked([&](std::string_view operation, const std::filesystem::path& path) {
    if (operation == "rename" && path.filename() == "step-00000001" && !pin) {
      pin.emplace(*files_, path);
    }
  });
  EXPECT_FALSE(remove_unless_pinned(hooked, dir_.path(), {1, 1}));
  ASSERT_TRUE(pin.has_value());
  EXPECT_THAT(steps(), ElementsAre(1));
  expect_whole(CheckpointReader(manager.step(1).directory));
  pin.reset();
  EXPECT_TRUE(remove_unless_pinned(*files_, dir_.path(), {1, 1}));
  EXPECT_TRUE(remove_unless_pinned(*files_, dir_.path(), {1, 1})) << "someone else was faster";
  EXPECT_THAT(hidden(), IsEmpty());
}

// A process that starts takes a lease that has not got its name yet for a dead one's.
TEST_F(Pins, AreMadeOnceMoreWhereACleanUpComesBetween) {
  CheckpointManager manager(dir_.path());
  save(manager, 1);
  int cleaned = 0;
  const auto hooked = std::make_shared<HookedFileSystem>(
      [&](std::string_view operation, const std::filesystem::path& path) {
        if (operation != "rename" || path.extension() != ".new" || cleaned++ > 2) return;
        collect_root_garbage(*files_, dir_.path());
      });
  const CheckpointReader reader(manager.step(1).directory, {.file_system = hooked});
  EXPECT_EQ(cleaned, 4);
  EXPECT_TRUE(reader.pinned());
  EXPECT_THAT(hidden(), ElementsAre(testing::StartsWith(".pin-step-00000001.")));
}

// The same, and before the pin is seen somebody else collects the trash that the checkpoint is
// then.
TEST_F(Pins, KeepTrashThatIsToComeBackFromCollectors) {
  CheckpointManager manager(dir_.path());
  save(manager, 1);
  std::optional<Pin> pin;
  int collections = 0;
  HookedFileSystem hooked([&](std::string_view operation, const std::filesystem::path& path) {
    if (operation == "rename" && path.filename() == "step-00000001" && !pin) {
      pin.emplace(*files_, path);
    }
    if (operation != "sync directory" || collections++ > 0) return;
    EXPECT_THAT(collect_root_garbage(*files_, dir_.path()).kept,
                Contains(testing::StartsWith(".trash-step-00000001.")));
  });
  EXPECT_FALSE(remove_unless_pinned(hooked, dir_.path(), {1, 1}));
  EXPECT_THAT(steps(), ElementsAre(1));
  expect_whole(CheckpointReader(manager.step(1).directory));
}

// At every instant of a collection a pin is seen, and the trash gets its name back: whole, or not
// any more.
TEST_F(Pins, NeverBringBackWhatIsHalfCollected) {
  bool was_back = false, was_gone = false, done = false;
  for (int instant = 1; !done; ++instant) {
    CheckpointManager manager(dir_.path());
    save(manager, 1);
    const auto trash = trash_checkpoint(*files_, dir_.path(), {1, 1});
    ASSERT_TRUE(trash.has_value());
    int operations = 0;
    HookedFileSystem hooked([&](std::string_view, const std::filesystem::path&) {
      if (++operations != instant) return;
      try {
        files_->rename(trash->is, trash->was);
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::not_found);
      }
    });
    collect_root_garbage(hooked, dir_.path());
    done = operations < instant;
    EXPECT_THAT(hidden(), IsEmpty());
    if (steps().empty()) {
      was_gone = true;
      continue;
    }
    was_back = true;
    expect_whole(CheckpointReader(manager.step(1).directory));
    EXPECT_TRUE(verify_checkpoint(manager.step(1).directory).ok());
    manager.remove(1);
  }
  EXPECT_TRUE(was_back && was_gone);
}

// The collector was at work before the pin was there.
TEST_F(Pins, MayComeTooLateForTrash) {
  CheckpointManager manager(dir_.path());
  save(manager, 1);
  std::optional<Pin> pin;
  HookedFileSystem hooked([&](std::string_view operation, const std::filesystem::path& path) {
    if (operation != "rename") return;
    const bool is_trash = path.filename().string().starts_with(".trash-");
    if (is_trash) return remove_tree(*files_, path);
    pin.emplace(*files_, path);
  });
  EXPECT_TRUE(remove_unless_pinned(hooked, dir_.path(), {1, 1})) << "it is gone";
  EXPECT_THAT(steps(), IsEmpty());
}

// Retention takes its name away, sees the pin, and gives it back.
TEST_F(Pins, ReadingGoesOnWhereACheckpointWasAwayForAMoment) {
  CheckpointManager manager(dir_.path());
  save(manager, 1);
  int away = 0;
  const auto hooked = std::make_shared<HookedFileSystem>(
      [&](std::string_view operation, const std::filesystem::path& path) {
        if (operation == "open" && path.extension() == ".h5" && away++ == 0) {
          throw Error(ErrorCode::not_found, "it is away");
        }
      });
  expect_whole(CheckpointReader(manager.step(1).directory, {.file_system = hooked}));
  EXPECT_EQ(away, 2);
}

// A data loader's worker, say, that ends as its parent would.
TEST_F(Pins, OutliveAForkedChildsCopies) {
  CheckpointManager manager(dir_.path(), {.keep = {.last = 1}});
  save(manager, 1);
  auto reader = std::make_unique<CheckpointReader>(manager.step(1).directory);
  auto attempt = std::make_unique<Attempt>(*files_, dir_.path(), 9, leftovers_);
  const pid_t child = ::fork();
  if (child == 0) {
    reader.reset();
    attempt.reset();
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  EXPECT_EQ(hidden().size(), 3u) << "the pin, the attempt and its lease";
  save(manager, 2);
  EXPECT_THAT(steps(), ElementsAre(1, 2));
  attempt.reset();
  reader.reset();
  EXPECT_THAT(hidden(), IsEmpty());
}

TEST_F(Pins, AreNotNeededToRead) {
  CheckpointManager manager(dir_.path());
  save(manager, 1);
  const auto refusing = std::make_shared<HookedFileSystem>(
      [](std::string_view operation, const std::filesystem::path&) {
        if (operation == "create") throw Error(ErrorCode::io, "read-only");
      });
  const CheckpointReader reader(manager.step(1).directory, {.pin = true, .file_system = refusing});
  expect_whole(reader);
  EXPECT_THAT(hidden(), IsEmpty());
  message_of(ErrorCode::not_found,
             [&] { CheckpointReader(dir_ / "step-00000007", {.pin = true}); });
}

}  // namespace
}  // namespace shardwise::detail
