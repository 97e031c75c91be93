// Every operation of a repair, and of writing parity, fails once, in four ways, and the process is
// killed before every one. Each byte then is as it was or as it should be, and the next call ends
// the work.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <new>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/detail/root/names.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/mend/parity.h"
#include "shardwise/mend/repair.h"
#include "shardwise/shard/error.h"
#include "testing/fault_model.h"
#include "testing/faulty_file_system.h"
#include "testing/flip.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/run_program.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

using Files = std::map<std::string, std::vector<std::byte>>;

Files files_in(const fs::path& directory) {
  Files files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    files[entry.path().filename().string()] = file_bytes(entry.path());
  }
  return files;
}

enum class DamageTo { chunks, files, protected_file };

const char* name_of(DamageTo damage) {
  constexpr const char* kNames[] = {"chunks", "files", "protected_file"};
  return kNames[static_cast<int>(damage)];
}

// Step 1 with damage in two chunks, or in all files outside their chunks; and a copy of it from
// before. Or, without a copy, damage to a chunk, to HDF5's own bytes and to the parity of the file.
class DamagedRoot {
 public:
  explicit DamagedRoot(DamageTo damage) {
    static const TempDir first;
    static const fs::path saved = CheckpointManager(first.path())
                                      .save(1, sources_of(fault_model(1)), {.writers = 1})
                                      .directory;
    fs::copy(saved, step());
    if (damage == DamageTo::protected_file) {
      run_write_parity(path(), posix_file_system());
    } else {
      fs::copy(saved, path() / "copy");
    }
    good_ = files_in(step());
    const auto stored = detail::open_checkpoint(*posix_file_system(), step());
    for (const std::size_t tensor : {std::size_t{0}, std::size_t{2}}) {
      const detail::ChunkId id{tensor, 0, 0};
      const detail::ChunkRecord& record = stored.record(id);
      const fs::path file = step() / stored.file_name(stored.file_of(id));
      if (damage == DamageTo::files) continue;
      flip(file, record.address, std::byte{1});
      flip(file, record.address + record.stored_bytes - 1, std::byte{1});
    }
    if (damage == DamageTo::files) {
      flip(step() / stored.manifest.files[0].name, 9, std::byte{1});
      fs::remove(step() / detail::kIndexName);
      fs::resize_file(step() / detail::kManifestName, good_.at(detail::kManifestName).size() - 9);
    }
    if (damage == DamageTo::protected_file) {
      const std::string name = stored.manifest.files[0].name;
      flip(step() / name, 9, std::byte{1});
      flip(step() / (name + std::string(detail::kParitySuffix)), 0, std::byte{1});
    }
    before_ = files_in(step());
  }

  const fs::path& path() const { return dir_.path(); }
  fs::path step() const { return path() / "step-00000001"; }

  // Expects the invariants after any fault.
  void check() const {
    const Files now = files_in(step());
    for (const auto& [name, bytes] : before_) ASSERT_TRUE(now.contains(name)) << name;
    for (const auto& [name, bytes] : now) {
      if (detail::is_repair_name(name)) continue;
      const std::vector<std::byte>& good = good_.at(name);
      if (bytes == good) continue;
      const std::vector<std::byte>& before = before_.at(name);
      if (bytes == before) continue;
      ASSERT_EQ(bytes.size(), good.size());
      for (std::size_t i = 0; i < bytes.size(); ++i) {
        ASSERT_TRUE(bytes[i] == good[i] || bytes[i] == before[i]) << name << " " << i;
      }
    }
    EXPECT_TRUE(!fs::exists(path() / "copy") || files_in(path() / "copy") == good_);
  }

  void check_repair_ends_the_work() const {
    const RepairReport report = run_repair(path(), posix_file_system());
    EXPECT_TRUE(report.ok());
    EXPECT_TRUE(files_in(step()) == good_);
  }

 private:
  const TempDir dir_;
  Files good_, before_;
};

class RepairFaults : public testing::TestWithParam<DamageTo> {};

TEST_P(RepairFaults, EveryOperationMayFail) {
  std::int64_t operations = 0;
  {
    const DamagedRoot root(GetParam());
    const auto files = std::make_shared<FaultyFileSystem>(0, Fault::io);
    files->exchange_in_one_step();
    EXPECT_EQ(run_repair(root.path(), files).repaired.size(), GetParam() == DamageTo::chunks  ? 2u
                                                              : GetParam() == DamageTo::files ? 3u
                                                                                              : 4u);
    operations = files->operations();
  }
  EXPECT_GT(operations, 40);
  for (const Fault fault : {Fault::io, Fault::no_space, Fault::cut, Fault::no_memory}) {
    for (std::int64_t at = 1; at <= operations; ++at) {
      SCOPED_TRACE(testing::Message() << "operation " << at << " of " << operations << ", fault "
                                      << static_cast<int>(fault));
      const DamagedRoot root(GetParam());
      const auto files = std::make_shared<FaultyFileSystem>(at, fault);
      files->exchange_in_one_step();
      try {
        run_repair(root.path(), files);
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::io) << e.what();
      } catch (const std::bad_alloc&) {
        EXPECT_EQ(fault, Fault::no_memory);
      }
      EXPECT_GE(files->operations(), at) << "the fault came to pass";
      root.check();
      root.check_repair_ends_the_work();
    }
  }
}

TEST_P(RepairFaults, TheProcessMayBeKilledBeforeEveryOperation) {
  bool ended = false;
  std::int64_t at = 1;
  for (; !ended && at < 500; ++at) {
    SCOPED_TRACE(testing::Message() << "operation " << at);
    const DamagedRoot root(GetParam());
    ended =
        ends_by_itself({SHARDWISE_FAULT_PROGRAM, root.path().string(),
                        std::to_string(static_cast<int>(FaultAction::repair)), std::to_string(at)});
    root.check();
    root.check_repair_ends_the_work();
  }
  EXPECT_TRUE(ended);
  EXPECT_GT(at, 40);
}

INSTANTIATE_TEST_SUITE_P(All, RepairFaults,
                         testing::Values(DamageTo::chunks, DamageTo::files,
                                         DamageTo::protected_file),
                         [](const auto& test) { return name_of(test.param); });

// Step 1 as it was saved, before and after its parity was written.
class ParityFaults : public testing::Test {
 protected:
  struct Root {
    Root() {
      static const TempDir first;
      static const fs::path saved = CheckpointManager(first.path())
                                        .save(1, sources_of(fault_model(1)), {.writers = 2})
                                        .directory;
      fs::copy(saved, step());
    }
    fs::path step() const { return dir.path() / "step-00000001"; }

    const TempDir dir;
  };

  static void check(const Root& root) {
    static const Files good = [] {
      const Root whole;
      run_write_parity(whole.dir.path(), posix_file_system());
      return files_in(whole.step());
    }();
    const auto is_parity = [](const std::string& name) {
      return name.ends_with(detail::kParitySuffix);
    };
    const Files now = files_in(root.step());
    for (const auto& [name, bytes] : good) {
      ASSERT_TRUE(now.contains(name) || is_parity(name)) << name;
    }
    for (const auto& [name, bytes] : now) {
      EXPECT_TRUE(detail::is_repair_name(name) || bytes == good.at(name)) << name;
    }
    run_write_parity(root.dir.path(), posix_file_system());
    EXPECT_TRUE(files_in(root.step()) == good) << "the next call ends the work";
  }
};

TEST_F(ParityFaults, EveryOperationMayFail) {
  std::int64_t operations = 0;
  {
    const Root root;
    const auto files = std::make_shared<FaultyFileSystem>(0, Fault::io);
    EXPECT_EQ(run_write_parity(root.dir.path(), files).written, 2);
    operations = files->operations();
  }
  EXPECT_GT(operations, 40);
  for (const Fault fault : {Fault::io, Fault::no_space, Fault::cut, Fault::no_memory}) {
    for (std::int64_t at = 1; at <= operations; ++at) {
      SCOPED_TRACE(testing::Message() << "operation " << at << " of " << operations << ", fault "
                                      << static_cast<int>(fault));
      const Root root;
      const auto files = std::make_shared<FaultyFileSystem>(at, fault);
      try {
        run_write_parity(root.dir.path(), files);
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::io) << e.what();
      } catch (const std::bad_alloc&) {
        EXPECT_EQ(fault, Fault::no_memory);
      }
      EXPECT_GE(files->operations(), at) << "the fault came to pass";
      check(root);
    }
  }
}

TEST_F(ParityFaults, TheProcessMayBeKilledBeforeEveryOperation) {
  bool ended = false;
  std::int64_t at = 1;
  for (; !ended && at < 500; ++at) {
    SCOPED_TRACE(testing::Message() << "operation " << at);
    const Root root;
    ended = ends_by_itself({SHARDWISE_FAULT_PROGRAM, root.dir.path().string(),
                            std::to_string(static_cast<int>(FaultAction::write_parity)),
                            std::to_string(at)});
    check(root);
  }
  EXPECT_TRUE(ended);
  EXPECT_GT(at, 40);
}

}  // namespace
}  // namespace shardwise
