// Every operation of a save, a replacement, a removal, a name that moves, a clean-up, and saves
// with retention (one reuses files, one links those of the step before, one is kept by several
// rules) fails once, in four ways (EIO; ENOSPC; half of it is done, then EIO; no memory), and the
// process is killed before every one. These are all operations of FileSystem and File: create,
// reuse, open, read, write, resize, size, sync, close, list, make directory, sync directory,
// rename, link, remove. No other kind changes the disk: checkpoint/ maps files only to ask which of
// their pages are in the page cache. Reading fails at every operation in reader_test.cc; random
// instants are in manager_killed_test.cc, power losses in crash_states_test.cc, file systems that
// refuse or are full in file_answers_test.cc.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <new>
#include <string>

#include "shardwise/checkpoint/detail/root/attempt.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "testing/errors.h"
#include "testing/fault_model.h"
#include "testing/faulty_file_system.h"
#include "testing/root_names.h"
#include "testing/root_outcome.h"
#include "testing/run_program.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::AnyOf;
using testing::ElementsAre;
using testing::IsEmpty;

bool holds(const std::filesystem::path& directory, std::uint64_t seed) {
  return holds(CheckpointReader(directory), fault_model(seed));
}

// A root with steps 1 and 2, and an attempt of a live process.
class Root {
 public:
  Root() {
    static const TempDir first;
    static const bool made = [] {
      CheckpointManager manager(first.path());
      manager.save(1, sources_of(fault_model(1)));
      manager.save(2, sources_of(fault_model(2)));
      return true;
    }();
    EXPECT_TRUE(made);
    std::filesystem::copy(first.path(), path(), std::filesystem::copy_options::recursive);
    stranger_ = std::make_unique<detail::Attempt>(*files_, path(), 77, leftovers_);
  }

  const std::filesystem::path& path() const { return dir_.path(); }

  // Expects the invariants after any fault in `action`. `done`: it ended without an error.
  void check(FaultAction action, bool done) {
    CheckpointManager manager(path(), {.collect_garbage = false});
    const std::vector<Step> steps = manager.steps();
    const auto there = [&](std::int64_t number) {
      return std::any_of(steps.begin(), steps.end(),
                         [&](const Step& step) { return step.step == number; });
    };
    if (action == FaultAction::rules) {
      EXPECT_TRUE(holds(manager.step(1).directory, 1));
      EXPECT_TRUE(holds(manager.step(4).directory, 3));
      EXPECT_TRUE(there(5) ? holds(manager.step(5).directory, 1) : there(3));
      EXPECT_TRUE(!there(3) || holds(manager.step(3).directory, 3));
      EXPECT_TRUE(!done || there(5));
      EXPECT_FALSE(there(2));
    } else if (action == FaultAction::increment) {
      EXPECT_TRUE(holds(CheckpointReader(manager.step(3).directory), increment_model(3)));
      EXPECT_TRUE(there(4) ? holds(CheckpointReader(manager.step(4).directory), increment_model(4))
                           : there(2));
      EXPECT_TRUE(!done || there(4));
    } else if (action == FaultAction::reuse) {
      EXPECT_TRUE(holds(manager.step(3).directory, 3));
      EXPECT_TRUE(there(4) ? holds(manager.step(4).directory, 1) : there(2));
      EXPECT_TRUE(!there(2) || holds(manager.step(2).directory, 2));
      EXPECT_TRUE(!done || there(4));
    } else if (action == FaultAction::retention && there(3)) {
      EXPECT_TRUE(!there(1) || holds(manager.step(1).directory, 1));
    } else {
      EXPECT_TRUE(holds(manager.step(1).directory, 1));
    }
    if (action == FaultAction::reuse || action == FaultAction::increment) {
      EXPECT_FALSE(there(1));
    } else if (action == FaultAction::save || action == FaultAction::retention) {
      EXPECT_TRUE(holds(manager.step(2).directory, 2));
      EXPECT_TRUE(!done || there(3));
      EXPECT_TRUE(!there(3) || holds(manager.step(3).directory, 3));
    } else if (action == FaultAction::replace) {
      const bool old = holds(manager.step(2).directory, 2);
      EXPECT_TRUE(old || holds(manager.step(2).directory, 3));
      EXPECT_FALSE(done && old);
    } else if (action == FaultAction::pin || action == FaultAction::collect) {
      EXPECT_TRUE(holds(manager.step(2).directory, 2));
    } else if (action == FaultAction::remove) {
      EXPECT_FALSE(done && there(2));
      EXPECT_TRUE(!there(2) || holds(manager.step(2).directory, 2));
    }
    check_names(manager, action, done);
    for (const Step& step : steps) EXPECT_LE(step.step, 5);
    EXPECT_THAT(manager.latest()->rejected, IsEmpty());
  }

  // A name that moves is on neither step for a moment.
  static void check_names(const CheckpointManager& manager, FaultAction action, bool done) {
    std::vector<std::int64_t> named;
    for (const NamedStep& one : manager.pins().list()) named.push_back(one.step);
    if (action == FaultAction::rules) {
      EXPECT_THAT(named, ElementsAre(1));
    } else if (action == FaultAction::pin) {
      if (done) {
        EXPECT_THAT(named, ElementsAre(2));
      } else {
        EXPECT_THAT(named, AnyOf(IsEmpty(), ElementsAre(1), ElementsAre(2)));
      }
    } else {
      EXPECT_THAT(named, IsEmpty());
    }
  }

  // Nothing is left but the steps and the stranger's attempt and lease, nor is when others come.
  void check_clean() {
    const CheckpointManager collects(path());
    check_nothing_left(0);
  }

  // Except at most `spares` checkpoints whose files the next save reuses.
  void check_nothing_left(int spares) {
    std::vector<std::string> hidden;
    for (const std::string& name : root_names(path())) {
      if (name.starts_with(".trash-") && --spares >= 0) continue;
      if (name.front() == '.' && !name.starts_with(".named-")) hidden.push_back(name);
    }
    const std::string stem = detail::attempt_stem(77, stranger_->id());
    EXPECT_THAT(hidden, testing::UnorderedElementsAre(detail::attempt_name(stem),
                                                      detail::lease_name(stem)));
    std::vector<std::int64_t> seen;
    for (const detail::StepName& name : detail::committed_names(*files_, path())) {
      seen.push_back(name.step);
    }
    EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end()) << "one generation each";
  }

 private:
  TempDir dir_;
  std::shared_ptr<FileSystem> files_ = posix_file_system();
  std::vector<std::filesystem::path> leftovers_;
  std::unique_ptr<detail::Attempt> stranger_;
};

class ManagerFaults : public testing::TestWithParam<FaultAction> {};

TEST_P(ManagerFaults, EveryOperationMayFail) {
  std::int64_t operations = 0;
  {
    const Root root;
    auto files = std::make_shared<FaultyFileSystem>(0, Fault::io);
    CheckpointManager manager(root.path(), fault_options(GetParam(), files));
    prepare_fault_action(manager, GetParam());
    files->restart(0);
    run_fault_action(manager, GetParam());
    operations = files->operations();
  }
  const bool is_short = GetParam() == FaultAction::remove || GetParam() == FaultAction::pin;
  EXPECT_GT(operations, is_short ? 8 : 25);
  for (const Fault fault : {Fault::io, Fault::no_space, Fault::cut, Fault::no_memory}) {
    // Other rules differ from retention in their choice of steps, not in the removal.
    if (GetParam() == FaultAction::rules && fault != Fault::io) continue;
    for (std::int64_t at = 1; at <= operations; ++at) {
      SCOPED_TRACE(testing::Message() << "operation " << at << " of " << operations << ", fault "
                                      << static_cast<int>(fault));
      Root root;
      auto files = std::make_shared<FaultyFileSystem>(0, fault);
      CheckpointManager manager(root.path(), fault_options(GetParam(), files));
      prepare_fault_action(manager, GetParam());
      files->restart(at);
      const char* const told = fault == Fault::no_memory ? "out of memory" : "injected";
      bool done = false;
      try {
        const std::string not_cleaned = run_fault_action(manager, GetParam());
        done = true;
        // It told of the fault, or did again what had failed.
        const bool removes_and_saves =
            GetParam() != FaultAction::save && GetParam() != FaultAction::remove;
        if (not_cleaned.empty()) root.check_nothing_left(removes_and_saves ? 1 : 0);
        EXPECT_TRUE(not_cleaned.empty() || not_cleaned.find(told) != std::string::npos);
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::io) << e.what();
        EXPECT_THAT(e.what(), testing::HasSubstr("injected"));
      } catch (const std::bad_alloc&) {
        EXPECT_EQ(fault, Fault::no_memory);
      }
      EXPECT_GE(files->operations(), at) << "the fault came to pass";
      root.check(GetParam(), done);
      // The same manager goes on: it removes now all that it could not before, and saves.
      manager.collect_garbage();
      root.check_clean();
      manager.save(3, sources_of(fault_model(3)), {.existing = Existing::replace});
      EXPECT_TRUE(holds(manager.step(3).directory, 3));
    }
  }
}

// Runs the helper program, which is killed before operation `at`; true where it ended by itself.
bool run_and_kill(const std::filesystem::path& root, FaultAction action, std::int64_t at) {
  return ends_by_itself({SHARDWISE_FAULT_PROGRAM, root.string(),
                         std::to_string(static_cast<int>(action)), std::to_string(at)});
}

TEST_P(ManagerFaults, TheProcessMayBeKilledBeforeEveryOperation) {
  bool ended = false;
  for (std::int64_t at = 1; !ended && at < 500; ++at) {
    SCOPED_TRACE(testing::Message() << "operation " << at);
    Root root;
    ended = run_and_kill(root.path(), GetParam(), at);
    root.check(GetParam(), ended);
    root.check_clean();
    if (at % 7 != 0) continue;
    CheckpointManager manager(root.path());
    manager.save(3, sources_of(fault_model(3)), {.existing = Existing::replace});
    EXPECT_TRUE(holds(manager.step(3).directory, 3));
  }
  EXPECT_TRUE(ended);
}

INSTANTIATE_TEST_SUITE_P(
    All, ManagerFaults,
    testing::Values(FaultAction::save, FaultAction::replace, FaultAction::remove,
                    FaultAction::retention, FaultAction::reuse, FaultAction::increment,
                    FaultAction::rules, FaultAction::pin, FaultAction::collect),
    [](const auto& test) { return std::string(fault_action_name(test.param)); });

// Killed between batches of data, again and again, on one root.
TEST(ManagerKilled, InMidSaveRepeatedly) {
  Root root;
  for (const std::int64_t quarters : {1, 2, 3, 1, 3, 2}) {
    EXPECT_FALSE(run_and_kill(root.path(), FaultAction::save_until_progress, quarters));
    root.check(FaultAction::save, false);
  }
  root.check_clean();
  EXPECT_TRUE(run_and_kill(root.path(), FaultAction::save_until_progress, 1000));
  root.check(FaultAction::save, true);
  root.check_clean();
}

// The operating system refuses to make a file as large as is needed.
TEST(ManagerLimits, AFullDiskLeavesEverythingAsItWas) {
  Root root;
  const std::vector<std::string> before = posix_file_system()->list(root.path());
  EXPECT_TRUE(run_and_kill(root.path(), FaultAction::save_past_limit, 0));
  EXPECT_EQ(posix_file_system()->list(root.path()), before);
  root.check(FaultAction::save, false);
}

}  // namespace
}  // namespace shardwise
