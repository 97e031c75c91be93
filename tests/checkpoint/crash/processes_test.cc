// Several processes on one root, each alive or really dead: what one of them reads or writes, the
// others leave alone as long as it lives, and no longer.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "testing/child_process.h"
#include "testing/fault_model.h"
#include "testing/root_outcome.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::IsEmpty;
using testing::Pair;
using testing::StartsWith;
using testing::UnorderedElementsAreArray;

// Without the leases of managers that are not closed.
std::vector<std::string> hidden(const std::filesystem::path& root) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    std::string name = entry.path().filename().string();
    if (name.front() == '.' && !name.starts_with(".writer.")) names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Those that are not set aside.
std::vector<std::int64_t> steps(const CheckpointManager& manager) {
  std::vector<std::int64_t> numbers;
  for (const Step& step : manager.steps()) {
    if (!step.is_set_aside) numbers.push_back(step.step);
  }
  return numbers;
}

class Processes : public testing::Test {
 protected:
  std::vector<std::string> command(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {SHARDWISE_PROCESS_PROGRAM, dir_.path().string()});
    return arguments;
  }

  void save(CheckpointManager& manager, std::int64_t step, std::uint64_t seed,
            Existing existing = Existing::fail) {
    const SaveStats stats =
        manager.save(step, sources_of(fault_model(seed)), {.existing = existing});
    EXPECT_EQ(stats.cleanup_error, "");
  }

  const TempDir dir_;
};

enum class End { normal, killed };

class ReaderProcess : public Processes, public testing::WithParamInterface<End> {
 protected:
  static void end(ChildProcess& reader) {
    GetParam() == End::killed ? reader.kill() : reader.finish();
  }

  static void expect_reads(ChildProcess& reader) {
    reader.tell();
    EXPECT_EQ(reader.line(), "whole");
  }
};

TEST_P(ReaderProcess, KeepsItsStepFromRetention) {
  CheckpointManager manager(dir_.path(), {.keep = {.last = 1}});
  save(manager, 1, 1);
  ChildProcess reader(command({"read", "1"}));
  ASSERT_EQ(reader.line(), "pinned");
  save(manager, 2, 2);
  EXPECT_THAT(manager.collect_garbage().kept, ElementsAre(StartsWith(".pin-step-00000001.")));
  const CheckpointManager started_later(dir_.path());
  save(manager, 3, 3);
  EXPECT_THAT(steps(manager), ElementsAre(1, 3));
  expect_reads(reader);

  end(reader);
  save(manager, 4, 1);
  EXPECT_THAT(steps(manager), ElementsAre(4));
  manager.collect_garbage();
  expect_clean(manager, dir_.path());
}

TEST_P(ReaderProcess, KeepsAGenerationThatIsReplaced) {
  CheckpointManager manager(dir_.path());
  save(manager, 1, 1);
  ChildProcess reader(command({"read", "1"}));
  ASSERT_EQ(reader.line(), "pinned");
  save(manager, 1, 2, Existing::replace);
  EXPECT_THAT(manager.collect_garbage().kept, Contains("step-00000001"));
  const CheckpointManager started_later(dir_.path());
  expect_reads(reader);

  end(reader);
  EXPECT_THAT(manager.collect_garbage().removed, Contains("step-00000001"));
  expect_clean(manager, dir_.path());
  EXPECT_TRUE(holds(CheckpointReader(manager.step(1).directory), fault_model(2)));
}

INSTANTIATE_TEST_SUITE_P(Ends, ReaderProcess, testing::Values(End::normal, End::killed),
                         [](const auto& test) {
                           return test.param == End::killed ? "Killed" : "Normal";
                         });

TEST_F(Processes, ASaveHalfWayIsLeftAloneAndGoesOn) {
  ChildProcess saver(command({"save", "3"}));
  ASSERT_EQ(saver.line(), "half-way");
  const std::vector<std::string> attempt = hidden(dir_.path());
  ASSERT_THAT(attempt, ElementsAre(AllOf(StartsWith(".step-00000003."), EndsWith(".lease")),
                                   AllOf(StartsWith(".step-00000003."), EndsWith(".tmp"))));
  CheckpointManager manager(dir_.path(), {.keep = {.last = 1}});
  EXPECT_THAT(steps(manager), IsEmpty());
  const GarbageReport report = manager.collect_garbage();
  EXPECT_THAT(report.removed, IsEmpty());
  EXPECT_THAT(report.kept, UnorderedElementsAreArray(attempt));
  save(manager, 1, 1);
  save(manager, 2, 2);
  save(manager, 2, 3, Existing::replace);
  manager.collect_garbage();
  EXPECT_EQ(hidden(dir_.path()), attempt);

  saver.tell();
  EXPECT_EQ(saver.line(), "committed");
  saver.finish();
  const std::vector<HostTensor> models[] = {fault_model(3)};
  EXPECT_THAT(outcome_of(manager, models), ElementsAre(Pair(2, 1), Pair(3, 1)));
  EXPECT_TRUE(holds(CheckpointReader(manager.step(3).directory), large_fault_model(3)));
  expect_clean(manager, dir_.path());
}

TEST_F(Processes, AKilledOnesSaveIsTheNextOnesToRemove) {
  CheckpointManager manager(dir_.path());
  save(manager, 1, 1);
  ChildProcess saver(command({"save", "3"}));
  ASSERT_EQ(saver.line(), "half-way");
  const std::vector<std::string> attempt = hidden(dir_.path());
  ASSERT_EQ(attempt.size(), 2u);
  EXPECT_FALSE(std::filesystem::is_empty(dir_ / attempt[1]));
  saver.kill();
  save(manager, 2, 2);
  EXPECT_EQ(hidden(dir_.path()), attempt) << "only start-up and collect_garbage() look for it";
  const CheckpointManager next(dir_.path());
  EXPECT_THAT(steps(next), ElementsAre(1, 2));
  expect_clean(next, dir_.path());
}

// It has the number and the start of the one it was.
TEST_F(Processes, AProgramThatBecomesAnotherRemovesWhatItHasLeft) {
  CheckpointManager manager(dir_.path());
  save(manager, 1, 1);
  ChildProcess program(command({"exec", "1"}));
  EXPECT_EQ(program.line(), "3 removed, 0 kept") << "pin, attempt and lease";
  program.finish();
  expect_clean(manager, dir_.path());
}

// Whatever they find of each other's steps, attempts, trash and pins at any instant: what can be
// opened is whole, and in the end nothing is left over.
TEST_F(Processes, TwoWritersAndAReaderOnOneRoot) {
  constexpr std::int64_t kRounds = 40;
  {
    ChildProcess reader(command({"restore"}));
    ChildProcess first(command({"write", "0", std::to_string(kRounds)}));
    ChildProcess second(command({"write", "1", std::to_string(kRounds)}));
    first.finish();
    second.finish();
    reader.finish();
    std::cout << reader.line() << "\n";
  }
  constexpr std::int64_t kLast = 3 * kRounds - 1;
  CheckpointManager manager(dir_.path(), {.keep = {.last = 2}});
  manager.collect_garbage();
  expect_clean(manager, dir_.path());
  const std::vector<HostTensor> models[] = {fault_model(1), fault_model(2), fault_model(3)};
  const Outcome found = outcome_of(manager, models);
  for (const auto& [step, seed] : found) EXPECT_NE(seed % kAside, 0u) << step;
  EXPECT_TRUE(found.contains(kLast) && found.at(kLast) < kAside);
  save(manager, kLast + 1, 1);
  EXPECT_THAT(steps(manager), ElementsAre(kLast, kLast + 1));
  manager.collect_garbage();
  expect_clean(manager, dir_.path());
}

}  // namespace
}  // namespace shardwise
