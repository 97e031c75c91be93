// The state of tiers after an operation of a restart fails, or the power goes in a save. Processes
// are threads here; group_killed_test.cc kills real ones.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "shardwise/tiers/tiers.h"
#include "testing/crash_states.h"
#include "testing/fault_model.h"
#include "testing/faulty_file_system.h"
#include "testing/flip.h"
#include "testing/journal_file_system.h"
#include "testing/temp_dir.h"
#include "testing/tier_job.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;

constexpr int kHosts = 2;
constexpr std::int64_t kFaultDevices = 4;

/// Seeds 1, 2, 3. Of the bytes most are those of a tensor that does not depend on the seed.
std::vector<HostTensor> tiers_model(std::int64_t seed) {
  std::vector<HostTensor> tensors = fault_model(static_cast<std::uint64_t>(seed));
  tensors.push_back(host_tensor("frozen", DType::f32, {300, 600}, "2,2", "0,1"));
  return tensors;
}

/// Runs on every rank; their errors. `files`: of a rank, null for the real ones.
std::vector<std::string> on_ranks(const fs::path& job,
                                  const std::function<std::shared_ptr<FileSystem>(int)>& files,
                                  const std::function<void(Devices&, TieredManager&)>& run) {
  return run_tiers(job, kHosts, {.local = {.copies = 1}, .devices = kFaultDevices}, run, files);
}

std::vector<std::string> save(const fs::path& job, std::int64_t step,
                              const std::shared_ptr<FileSystem>& files = nullptr) {
  return on_ranks(
      job, [&](int) { return files; },
      [&](Devices&, TieredManager& tiers) {
        tiers.save(step, sources_of(tiers_model(step)));
        tiers.close();
      });
}

/// The step that is found; it must have the values of its save.
std::int64_t restored(Devices& devices, TieredManager& tiers) {
  std::vector<TensorRequest> requests;
  for (const HostTensor& tensor : tiers_model(1)) requests.push_back({tensor.name, tensor.spec});
  const auto found = tiers.latest(addressable_boxes(devices, requests));
  if (!found) return 0;
  const auto expected = tiers_model(found->step.step);
  const auto arrays = found->open({.threads = 1}).restore(devices, requests);
  for (std::size_t t = 0; t < arrays.size(); ++t) {
    EXPECT_TRUE(holds_addressable(arrays[t], expected[t])) << found->to_string();
  }
  return found->step.step;
}

/// Both hosts have steps 1 and 2, the durable root step 1. Of step 2, both hosts' copies of rank
/// 0's file are bad, in different chunks, and so are those of its linked file, which is step 1's.
void damage(const fs::path& job) {
  for (int rank = 0; rank < kHosts; ++rank) {
    const fs::path file = fast_step(job, rank, 2) / "shards-00000-of-00002.h5";
    shardwise::flip(file, rank == 0 ? 5'000 : fs::file_size(file) / 2, std::byte{1});
    shardwise::flip(fast_step(job, rank, 1) / "shards-00000-of-00002.h5",
                    rank == 0 ? 5'000 : 200'000, std::byte{1});
  }
}

// Each operation of rank 1's file system fails once. All ranks hear of it, or the restart does
// without. Nothing is lost: the next restart has the newest step.
TEST(TiersFaults, EveryOperationOfARestartMayFail) {
  const TempDir dir;
  const fs::path saved = dir / "saved", job = dir / "job";
  ASSERT_THAT(save(saved, 1), Each(""));
  ASSERT_THAT(save(saved, 2), Each(""));
  fs::remove_all(saved / "durable/step-00000002");
  damage(saved);
  int failed = 0, done_without = 0;
  bool met = true;
  for (std::int64_t at = 1; met; ++at) {
    SCOPED_TRACE(testing::Message() << "operation " << at);
    fs::remove_all(job);
    fs::copy(saved, job, fs::copy_options::recursive);
    const auto files = std::make_shared<FaultyFileSystem>(0, Fault::io);
    const auto errors = on_ranks(
        job, [&](int rank) { return rank == 1 ? files : nullptr; },
        [&](Devices& devices, TieredManager& tiers) {
          devices.group().barrier();
          if (devices.group().rank() == 1) files->restart(at);
          EXPECT_THAT(restored(devices, tiers), AnyOf(1, 2));
        });
    met = files->operations() >= at;
    if (met) ++(errors[1].empty() ? done_without : failed);
    EXPECT_THAT(errors, AnyOf(Each(""), Each(HasSubstr("injected"))));
    files->restart(0);
    EXPECT_THAT(on_ranks(job, nullptr,
                         [&](Devices& devices, TieredManager& tiers) {
                           EXPECT_EQ(restored(devices, tiers), 2);
                         }),
                Each(""));
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_GT(failed, 20);
  EXPECT_GT(done_without, 5);
}

// In memory, if there is such a folder: no state need outlive the test.
fs::path states_folder() {
  const fs::path memory = "/dev/shm";
  return ::access(memory.c_str(), W_OK) == 0 ? memory : fs::temp_directory_path();
}

// The power of both hosts goes at once, at any instant of a save in both tiers: the step before is
// there, or the new one, whole.
TEST(TiersFaults, APowerLossInASaveLeavesTheOldStepOrTheNewOne) {
  const TempDir dir;
  ASSERT_THAT(save(dir.path(), 1), Each(""));
  CrashModel model(dir.path());
  const auto journal = std::make_shared<JournalFileSystem>(dir.path());
  ASSERT_THAT(save(dir.path(), 2, journal), Each(""));
  const std::vector<Change> changes = journal->changes();
  std::mt19937_64 random(3);
  int old_ones = 0, new_ones = 0;
  for (std::size_t at = 0; at <= changes.size(); ++at) {
    // As long as nothing is synced, a further operation only adds states.
    const bool is_end = at == changes.size();
    if (is_end || changes[at].kind == ChangeKind::sync ||
        changes[at].kind == ChangeKind::sync_directory) {
      for (int k = 0; k < 2; ++k) {
        SCOPED_TRACE(testing::Message() << "before operation " << at << " of " << changes.size());
        const TempDir disk(states_folder());
        write_state(model.random_state(random), disk.path());
        const auto errors =
            on_ranks(disk.path(), nullptr, [&](Devices& devices, TieredManager& tiers) {
              const std::int64_t step = restored(devices, tiers);
              EXPECT_TRUE(step == 2 || !is_end);
              EXPECT_THAT(step, AnyOf(1, 2));
              if (devices.group().rank() == 0) ++(step == 1 ? old_ones : new_ones);
              tiers.save(3, sources_of(tiers_model(3)));
              tiers.close();
              EXPECT_EQ(restored(devices, tiers), 3);
            });
        EXPECT_THAT(errors, Each(""));
        if (testing::Test::HasFailure()) return;
      }
    }
    if (!is_end) model.apply(changes[at]);
  }
  EXPECT_GT(old_ones, 10);
  EXPECT_GT(new_ones, 5);
}

}  // namespace
}  // namespace shardwise
