// A manager removes leftovers of dead processes and replaced steps, and nothing else.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>

#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "testing/errors.h"
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

HostTensor saved_tensor(std::uint64_t seed) {
  return host_tensor("w", DType::f32, {30, 20}, "data=4,model=2", "data,model", Values::noise,
                     seed);
}

TEST(ManagerGarbage, CollectsWhatDeadProcessesLeft) {
  const TempDir dir;
  const std::string id(32, 'a'), other(32, 'b'), third(32, 'c');
  const auto make = [&](const std::string& name) {
    std::filesystem::create_directories(dir / name);
    std::ofstream(dir / (name + "/shards-00000-of-00001.h5")) << "half";
  };
  make(".step-00000001." + id + ".tmp");
  std::ofstream(dir / (".step-00000001." + id + ".lease"))
      << R"({"pid":1,"start":1,"boot":"another boot","host":"another machine"})";
  make(".step-00000002." + other + ".tmp");
  std::ofstream(dir / (".step-00000002." + other + ".lease")) << "not a lease";
  make(".step-00000003." + third + ".tmp");
  make(".trash-step-00000009." + id);
  std::ofstream(dir / (".step-00000004." + id + ".lease.new")) << "";
  for (const char* mine : {".step-1.tmp", ".trash-x", "notes.tmp", ".git"}) make(mine);

  CheckpointManager manager(dir.path(), {.collect_garbage = false});
  const GarbageReport report = manager.collect_garbage();
  EXPECT_THAT(report.removed, testing::UnorderedElementsAre(".step-00000002." + other + ".tmp",
                                                            ".step-00000002." + other + ".lease",
                                                            ".step-00000003." + third + ".tmp",
                                                            ".trash-step-00000009." + id,
                                                            ".step-00000004." + id + ".lease.new"));
  EXPECT_THAT(report.kept, testing::UnorderedElementsAre(".step-00000001." + id + ".tmp",
                                                         ".step-00000001." + id + ".lease"));
  EXPECT_THAT(root_names(dir.path()),
              testing::UnorderedElementsAre(".step-00000001." + id + ".tmp",
                                            ".step-00000001." + id + ".lease", ".step-1.tmp",
                                            ".trash-x", "notes.tmp", ".git"));
}

TEST(ManagerGarbage, CollectsGenerationsThatAValidOneReplaces) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  manager.save(1, {saved_tensor(1).source()});
  manager.save(2, {saved_tensor(2).source()});
  std::filesystem::copy(dir / "step-00000001", dir / "step-00000001.g2");
  std::filesystem::copy(dir / "step-00000002", dir / "step-00000002.g2");
  std::ofstream(dir / "step-00000002.g2/manifest.json", std::ios::app) << "x";
  const CheckpointManager again(dir.path());
  EXPECT_THAT(root_names(dir.path()), ElementsAre("stats-step-00000002.json", "step-00000001.g2",
                                                  "step-00000002", "step-00000002.g2"));
}

TEST(ManagerGarbage, CollectsWhatNamedDeadHostsLeft) {
  const TempDir dir;
  const std::string stem = ".step-00000001." + std::string(32, 'a');
  std::filesystem::create_directory(dir / (stem + ".tmp"));
  std::ofstream(dir / (stem + ".lease"))
      << R"({"pid":1,"pid_namespace":1,"start":1,"boot":"b","host":"gone"})";
  CheckpointManager manager(dir.path());
  EXPECT_THAT(manager.collect_garbage({.dead_hosts = {"elsewhere"}}).kept, SizeIs(2));
  EXPECT_THAT(manager.collect_garbage({.dead_hosts = {"elsewhere", "gone"}}).removed, SizeIs(2));
  EXPECT_THAT(root_names(dir.path()), IsEmpty());
}

// On a root that belongs to somebody else or is mounted read-only one can still read.
TEST(ManagerGarbage, OpensForReadingWhatItCannotClean) {
  const TempDir dir;
  CheckpointManager(dir.path()).save(1, {saved_tensor(1).source()});
  std::filesystem::create_directory(dir / (".trash-step-00000009." + std::string(32, 'a')));
  std::filesystem::copy(dir / "step-00000001", dir / "step-00000001.g2");
  const auto files = std::make_shared<HookedFileSystem>(
      [](std::string_view operation, const std::filesystem::path& path) {
        if (operation == "open" || operation == "list") return;
        throw Error(ErrorCode::io, std::string(operation) + " " + path.string() + ": read-only");
      });
  CheckpointManager manager(dir.path(), {.file_system = files});
  EXPECT_EQ(manager.latest()->step.generation, 2);
  EXPECT_THAT(message_of(ErrorCode::io, [&] { manager.collect_garbage(); }),
              HasSubstr("read-only"));
  EXPECT_THAT(message_of(ErrorCode::io, [&] { manager.save(2, {saved_tensor(1).source()}); }),
              HasSubstr("read-only"));
  EXPECT_THAT(manager.steps(), ElementsAre(testing::Field(&Step::step, 1)));
}

TEST(ManagerGarbage, CleansWhatItCanWhereSomethingCannotBeRemoved) {
  const TempDir dir;
  const std::string foreign = ".trash-a." + std::string(32, 'a');
  for (const std::string& name : {foreign, ".trash-b." + std::string(32, 'b')}) {
    std::filesystem::create_directory(dir / name);
  }
  CheckpointManager(dir.path(), {.collect_garbage = false}).save(1, {saved_tensor(1).source()});
  std::filesystem::copy(dir / "step-00000001", dir / "step-00000001.g2");
  const auto files = std::make_shared<HookedFileSystem>(
      [&](std::string_view operation, const std::filesystem::path& path) {
        if (operation != "list" && path == dir / foreign) throw Error(ErrorCode::io, "not yours");
      });
  CheckpointManager manager(dir.path(), {.file_system = files});
  EXPECT_THAT(root_names(dir.path()), ElementsAre(foreign, "step-00000001.g2"));
  EXPECT_EQ(message_of(ErrorCode::io, [&] { manager.collect_garbage(); }), "not yours");
}

}  // namespace
}  // namespace shardwise
