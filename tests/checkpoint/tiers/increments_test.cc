// Chunks that have not changed since the step before are neither written again in the fast tier,
// nor sent again to those that keep copies, nor written again in the durable root. Processes are
// threads here, and each has a directory as its host's disk.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/tiers/tiers.h"
#include "testing/flip.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"
#include "testing/tier_job.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int kTwoHosts = 2;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kFirstChunk = 4096;  // where the data of a shard file begin

/// Each host has three chunks of 1 MiB of "frozen" (the first depends on `seed`) and a small tensor
/// that depends on the step.
std::vector<HostTensor> mostly_frozen(std::int64_t step, std::uint8_t seed = 0) {
  HostTensor frozen = host_tensor("frozen", DType::u8, {2, 3 * kMiB}, "2", "0,-");
  std::vector<std::byte> bytes = *frozen.data;
  for (const std::size_t row : {std::size_t{0}, 3 * kMiB}) bytes[row] ^= std::byte{seed};
  frozen.data = std::make_shared<const std::vector<std::byte>>(std::move(bytes));
  return {frozen, host_tensor("moving", DType::f32, {2, 100}, "2", "0,-", Values::noise,
                              static_cast<std::uint64_t>(step))};
}

class TierIncrements : public testing::Test {
 protected:
  fs::path durable() const { return dir_ / "durable"; }
  fs::path at(int rank, int step) const { return fast_step(dir_.path(), rank, step); }
  static std::string file_of(int rank) { return detail::shard_file_name(rank, 2); }
  static std::vector<fs::path> linked_in(const fs::path& step) {
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(step)) {
      if (entry.path().filename().string().starts_with(detail::kLinkedPrefix)) {
        found.push_back(entry.path());
      }
    }
    return found;
  }
  /// The file that is linked in `step` and is the same as `file`.
  static fs::path linked_of(const fs::path& step, const fs::path& file) {
    for (const fs::path& linked : linked_in(step)) {
      if (fs::equivalent(linked, file)) return linked;
    }
    return {};
  }

  void on_ranks(const std::function<void(Devices&, TieredManager&)>& run,
                TierOptions options = {}) const {
    options.local.copies = 1;
    options.write.fast_codec = Codec::none;
    options.devices = kTwoHosts;
    const auto errors = run_tiers(dir_.path(), kTwoHosts, options, run);
    ASSERT_THAT(errors, Each(""));
  }

  /// Asks for whole tensors, so that each host has to have all files.
  static TierStep expect_latest(Devices& devices, TieredManager& manager, Tier tier,
                                std::int64_t step, std::span<const HostTensor> tensors) {
    std::vector<TensorRequest> requests;
    std::vector<TensorBox> boxes;
    for (const HostTensor& tensor : tensors) {
      requests.push_back({tensor.name, tensor.spec});
      boxes.push_back({tensor.name, Box::whole(tensor.spec.shape)});
    }
    const auto found = manager.latest(boxes);
    if (!found) throw Error(ErrorCode::not_found, "there is no step");
    EXPECT_EQ(found->tier, tier) << found->to_string();
    EXPECT_EQ(found->step.step, step) << found->to_string();
    EXPECT_TRUE(holds(found->open({.threads = 1}), tensors)) << found->to_string();
    const auto arrays = found->open({.threads = 1}).restore(devices, requests);
    for (std::size_t t = 0; t < arrays.size(); ++t) {
      EXPECT_TRUE(holds_addressable(arrays[t], tensors[t])) << tensors[t].name;
    }
    return *found;
  }

  /// Steps 1 and 2 differ only in the small tensor; only step 1 is in the durable root.
  void save_two() const {
    on_ranks([](Devices&, TieredManager& tiers) {
      tiers.save(1, sources_of(mostly_frozen(1)));
      const SaveStats stats = tiers.save(2, sources_of(mostly_frozen(2)));
      EXPECT_EQ(stats.unchanged_bytes, 6 * kMiB);
      tiers.close();
    });
  }

  static std::vector<HostTensor> of_five(int step) {
    return mostly_frozen(step, static_cast<std::uint8_t>(step / 3));
  }
  /// Saves steps 1 to 5; the first chunks change at step 3. Step 5 links them from step 3's files,
  /// and the others from step 1's: gives the names of the two files that rank 0's links.
  std::pair<fs::path, fs::path> save_five() const {
    fs::path of_1, of_3;
    on_ranks([&](Devices& devices, TieredManager& tiers) {
      for (const int step : {1, 2, 3, 4, 5}) {
        tiers.save(step, sources_of(of_five(step)));
        if (devices.group().rank() != 0 || step % 2 == 1) continue;
        (step == 2 ? of_1 : of_3) = linked_of(at(0, step), at(0, step - 1) / file_of(0)).filename();
      }
      tiers.close();
    });
    return {of_1, of_3};
  }

  /// Restarts with this step; gives each rank's result.
  std::vector<TierStep> expect_fast(int step, std::span<const HostTensor> tensors,
                                    const TierOptions& options = {}) const {
    std::vector<TierStep> told(kTwoHosts);
    on_ranks(
        [&](Devices& devices, TieredManager& tiers) {
          told[static_cast<std::size_t>(devices.group().rank())] =
              expect_latest(devices, tiers, Tier::fast, step, tensors);
        },
        options);
    return told;
  }
  std::vector<TierStep> expect_step_2() const { return expect_fast(2, mostly_frozen(2)); }

  const TempDir dir_;
};

TEST_F(TierIncrements, AreNeitherWrittenNorSentNorDrainedAgain) {
  on_ranks(
      [](Devices&, TieredManager& tiers) {
        tiers.save(1, sources_of(mostly_frozen(1)));
        tiers.save(2, sources_of(mostly_frozen(2)));
        tiers.close();
      },
      {.drain = {.every = 1}});
  for (int rank = 0; rank < kTwoHosts; ++rank) {
    EXPECT_THAT(linked_in(at(rank, 2)), SizeIs(2));
    EXPECT_LT(fs::file_size(at(rank, 2) / file_of(rank)), kMiB / 8);
    for (const int writer : {0, 1}) {
      EXPECT_FALSE(linked_of(at(rank, 2), at(rank, 1) / file_of(writer)).empty())
          << "rank " << rank << ", the file of " << writer;
      EXPECT_FALSE(
          linked_of(durable() / "step-00000002", durable() / "step-00000001" / file_of(writer))
              .empty());
    }
  }
  // Each is whole without the other.
  for (int rank = 0; rank < kTwoHosts; ++rank) fs::remove_all(at(rank, 1));
  fs::remove_all(durable() / "step-00000001");
  EXPECT_TRUE(verify_checkpoint(durable() / "step-00000002").ok());
  EXPECT_TRUE(holds(CheckpointReader(durable() / "step-00000002"), mostly_frozen(2)));
  for (const TierStep& step : expect_step_2()) EXPECT_EQ(step.files_taken, 0);
}

// A step links unchanged chunks from the oldest step that wrote them, and from several steps.
TEST_F(TierIncrements, GoOnOverManySteps) {
  on_ranks([&](Devices& devices, TieredManager& tiers) {
    for (const int step : {1, 2, 3, 4, 5, 6}) {
      const auto tensors = mostly_frozen(step, static_cast<std::uint8_t>(step / 3));
      tiers.save(step, sources_of(tensors));
      expect_latest(devices, tiers, Tier::fast, step, tensors);
    }
    tiers.close();
  });
  for (int rank = 0; rank < kTwoHosts; ++rank) {
    EXPECT_FALSE(fs::exists(at(rank, 4)));
    EXPECT_THAT(linked_in(at(rank, 5)), SizeIs(4)) << "of steps 1 and 3, from each writer";
    EXPECT_THAT(linked_in(at(rank, 6)), SizeIs(2)) << "of step 1";
  }
}

TEST_F(TierIncrements, AreSentToOneWhoHasNotTheOlderFileOrABadOne) {
  for (const char* kind : {"missing", "cut", "HDF5's own bytes", "description"}) {
    SCOPED_TRACE(kind);
    for (const auto& entry : fs::directory_iterator(dir_.path())) fs::remove_all(entry);
    const fs::path copy = at(1, 1) / file_of(0);
    on_ranks([&](Devices& devices, TieredManager& tiers) {
      tiers.save(1, sources_of(mostly_frozen(1)));
      if (devices.group().rank() == 1) {
        fs::permissions(copy, fs::perms::owner_all);
        const std::uint64_t data_end =
            detail::read_manifest(detail::open_directory(*posix_file_system(), at(1, 1)))
                .files[0]
                .data_end;
        if (kind == std::string_view("missing")) fs::remove(copy);
        if (kind == std::string_view("cut")) fs::resize_file(copy, kMiB);
        if (kind == std::string_view("HDF5's own bytes")) shardwise::flip(copy, 100, std::byte{1});
        if (kind == std::string_view("description"))
          shardwise::flip(copy, data_end - 9, std::byte{1});
      }
      tiers.save(2, sources_of(mostly_frozen(2)));
      tiers.close();
    });
    const fs::path there = linked_of(at(0, 2), at(0, 1) / file_of(0));
    ASSERT_FALSE(there.empty());
    const fs::path got = at(1, 2) / there.filename();
    ASSERT_TRUE(fs::exists(got));
    EXPECT_EQ(fs::hard_link_count(got), 1u);
    EXPECT_TRUE(file_bytes(got) == file_bytes(there));
    expect_step_2();
  }
}

TEST_F(TierIncrements, FillInForALostHost) {
  save_two();
  fs::remove_all(host_of(dir_.path(), 0));
  on_ranks([&](Devices& devices, TieredManager& tiers) {
    const TierStep found = expect_latest(devices, tiers, Tier::fast, 2, mostly_frozen(2));
    const bool is_new = devices.group().rank() == 0;
    EXPECT_EQ(found.files_taken, is_new ? 2 : 0);
    EXPECT_EQ(found.bytes_taken > 6 * kMiB, is_new) << "with the linked files";
    EXPECT_EQ(tiers.save(3, sources_of(mostly_frozen(3))).unchanged_bytes, 6 * kMiB);
    expect_latest(devices, tiers, Tier::fast, 3, mostly_frozen(3));
  });
  for (int rank = 0; rank < kTwoHosts; ++rank) EXPECT_THAT(linked_in(at(rank, 3)), SizeIs(2));
}

TEST_F(TierIncrements, WithABadSharedChunkAreMendedFromACopy) {
  save_two();
  const fs::path own = at(0, 1) / file_of(0), other = at(1, 1) / file_of(0);
  const fs::path linked = linked_of(at(0, 2), own);
  shardwise::flip(own, kFirstChunk + 100, std::byte{1});
  shardwise::flip(own, kFirstChunk + kMiB + 100, std::byte{1});
  shardwise::flip(other, kFirstChunk + 2 * kMiB + 100, std::byte{1});  // neither is whole
  const std::vector<TierStep> told = expect_step_2();
  ASSERT_THAT(told[0].mended, SizeIs(1));
  EXPECT_EQ(told[0].mended[0], "2 chunks of " + linked.filename().string() +
                                   " from rank 1's process-00001/step-00000002");
  EXPECT_THAT(told[1].mended, Each(HasSubstr("1 chunk of " + linked.filename().string())));
  EXPECT_TRUE(file_bytes(linked) == file_bytes(at(1, 2) / linked.filename()));
  for (const TierStep& step : expect_step_2()) {
    EXPECT_THAT(step.damaged, IsEmpty());
    EXPECT_THAT(step.mended, IsEmpty());
  }
}

TEST_F(TierIncrements, WithAChunkThatIsBadOnAllHostsAreMendedFromTheDurableRoot) {
  save_two();
  for (int rank = 0; rank < kTwoHosts; ++rank) {
    shardwise::flip(at(rank, 1) / file_of(1), kFirstChunk + kMiB + 7, std::byte{1});
  }
  for (const TierStep& step : expect_step_2()) {
    EXPECT_THAT(step.mended, Each(HasSubstr((durable() / "step-00000001").string())));
    EXPECT_THAT(step.mended, SizeIs(1));
  }
}

TEST_F(TierIncrements, KeepSharingWhatIsWholeIfAnotherFileIsMended) {
  const auto [of_1, of_3] = save_five();
  shardwise::flip(at(0, 5) / of_3, kFirstChunk + 100, std::byte{1});
  EXPECT_THAT(expect_fast(5, of_five(5))[0].mended, SizeIs(1));
  EXPECT_TRUE(file_bytes(at(0, 5) / of_3) == file_bytes(at(1, 5) / of_3));
  EXPECT_TRUE(fs::equivalent(at(0, 5) / of_3, at(0, 4) / of_3)) << "mended in place";
  EXPECT_TRUE(fs::equivalent(at(0, 5) / of_1, at(0, 4) / of_1));
  EXPECT_EQ(fs::hard_link_count(at(0, 5) / file_of(0)), 1u);
}

// The first chunk of step 1's file is not step 5's: its host cannot read a sector there, in the
// middle of the chunk and next to those of step 5.
TEST_F(TierIncrements, AreMendedIfWhatOnlyOtherStepsHaveCannotBeRead) {
  const auto [of_1, of_3] = save_five();
  shardwise::flip(at(0, 5) / of_1, kFirstChunk + kMiB + 100, std::byte{1});
  for (const std::size_t sector : {kFirstChunk, kFirstChunk + kMiB / 2, kMiB}) {
    SCOPED_TRACE(sector);
    const auto files = std::make_shared<HookedFileSystem>(
        [](std::string_view, const fs::path&) {},
        [&, name = of_1](const fs::path& path, std::uint64_t offset, std::size_t size) {
          if (path != at(0, 5) / name || offset >= sector + 512 || offset + size <= sector) return;
          throw Error(ErrorCode::io, "read " + path.string() + ": Input/output error");
        });
    EXPECT_THAT(expect_fast(5, of_five(5), {.file_system = files})[0].mended, SizeIs(1));
    EXPECT_THAT(expect_fast(5, of_five(5))[0].mended, IsEmpty());
    shardwise::flip(at(0, 5) / of_1, kFirstChunk + kMiB + 100, std::byte{1});
  }
}

TEST_F(TierIncrements, WithABadLinkedFileAreTakenFromAnotherCopy) {
  for (const char* kind : {"missing", "cut", "HDF5's own bytes"}) {
    SCOPED_TRACE(kind);
    for (const auto& entry : fs::directory_iterator(dir_.path())) fs::remove_all(entry);
    save_two();
    const fs::path linked = linked_of(at(0, 2), at(0, 1) / file_of(0));
    fs::permissions(linked, fs::perms::owner_all);
    if (kind == std::string_view("missing")) fs::remove(linked);
    if (kind == std::string_view("cut")) fs::resize_file(linked, kMiB);
    if (kind == std::string_view("HDF5's own bytes")) shardwise::flip(linked, 100, std::byte{1});
    EXPECT_EQ(expect_step_2()[0].files_taken, 1);
    EXPECT_TRUE(file_bytes(linked) == file_bytes(at(1, 2) / linked.filename()));
    EXPECT_EQ(expect_step_2()[0].files_taken, 0);
    // Nothing else has come into the directory: two files, their linked files, and the manifest.
    EXPECT_EQ(std::distance(fs::directory_iterator(at(0, 2)), fs::directory_iterator()), 5);
  }
}

TEST_F(TierIncrements, TakeOnlyTheLinkedFileThatTheirHostHasNot) {
  const auto [of_1, of_3] = save_five();
  for (const char* kind : {"missing", "HDF5's own bytes"}) {
    SCOPED_TRACE(kind);
    if (kind == std::string_view("missing")) fs::remove(at(0, 5) / of_3);
    if (kind == std::string_view("HDF5's own bytes")) {
      shardwise::flip(at(0, 5) / of_3, 100, std::byte{1});
    }
    const TierStep told = expect_fast(5, of_five(5))[0];
    EXPECT_EQ(told.files_taken, 1);
    EXPECT_EQ(told.bytes_taken,
              fs::file_size(at(0, 5) / file_of(0)) + fs::file_size(at(0, 5) / of_3));
    EXPECT_TRUE(file_bytes(at(0, 5) / of_3) == file_bytes(at(1, 5) / of_3));
    EXPECT_TRUE(fs::equivalent(at(0, 5) / of_1, at(0, 4) / of_1));
  }
}

// So is a bad one that looks like this: its chunk is replaced where it came to.
TEST_F(TierIncrements, TakeOfALinkedFileWithABadChunkThatChunk) {
  const auto [of_1, of_3] = save_five();
  fs::remove(at(0, 5) / of_3);
  const auto written = fs::last_write_time(at(0, 5) / of_1);
  shardwise::flip(at(0, 5) / of_1, kFirstChunk + kMiB + 100, std::byte{1});
  fs::last_write_time(at(0, 5) / of_1, written);  // as a disk does; else the file is taken whole
  const TierStep told = expect_fast(5, of_five(5))[0];
  EXPECT_LT(told.bytes_taken, 2 * kMiB);
  EXPECT_THAT(told.mended, SizeIs(1));
  for (const fs::path& name : {of_1, of_3}) {
    EXPECT_TRUE(file_bytes(at(0, 5) / name) == file_bytes(at(1, 5) / name));
  }
}

// The first chunk of step 2 is bad on all hosts, and nowhere else: the next save has the same bytes
// there.
TEST_F(TierIncrements, AreNotBuiltOnAStepThatWasPassedOver) {
  on_ranks([](Devices&, TieredManager& tiers) {
    tiers.save(1, sources_of(mostly_frozen(1)));
    tiers.save(2, sources_of(mostly_frozen(2, 9)));
    tiers.close();
  });
  for (int rank = 0; rank < kTwoHosts; ++rank) {
    shardwise::flip(at(rank, 2) / file_of(0), kFirstChunk + 100, std::byte{1});
  }
  on_ranks([](Devices& devices, TieredManager& tiers) {
    expect_latest(devices, tiers, Tier::fast, 1, mostly_frozen(1));
    EXPECT_EQ(tiers.save(3, sources_of(mostly_frozen(3, 9))).unchanged_bytes, 4 * kMiB);
    expect_latest(devices, tiers, Tier::fast, 3, mostly_frozen(3, 9));
  });
}

TEST_F(TierIncrements, AreSeenAndGatheredWithoutTheJob) {
  save_two();
  const std::vector<fs::path> roots{host_of(dir_.path(), 0), host_of(dir_.path(), 1)};
  EXPECT_THAT(verify_fast_steps(roots).steps[0].nowhere, IsEmpty());
  const fs::path linked = linked_of(at(0, 2), at(0, 1) / file_of(0));
  fs::remove(linked);
  EXPECT_THAT(fast_steps(roots).steps[0].nowhere, IsEmpty());
  EXPECT_THAT(fast_steps(std::span(roots).first(1)).steps[0].nowhere,
              testing::ElementsAre(file_of(0)));
  shardwise::flip(at(1, 2) / linked.filename(), kFirstChunk + 100, std::byte{1});
  const FastSteps verified = verify_fast_steps(std::span(roots).last(1));
  EXPECT_THAT(verified.steps[0].damaged, SizeIs(1));
  EXPECT_THAT(verified.steps[0].nowhere, Each(HasSubstr("\"frozen\" chunk 0")));
  EXPECT_THAT(verified.steps[0].nowhere, SizeIs(1));
  const TierStep found =
      gather_fast_step(std::span(roots).last(1), dir_ / "rescued", 2, {.durable = durable()});
  EXPECT_THAT(found.mended, SizeIs(1));
  EXPECT_TRUE(verify_checkpoint(dir_ / "rescued/step-00000002").ok());
  EXPECT_TRUE(holds(CheckpointReader(dir_ / "rescued/step-00000002"), mostly_frozen(2)));
}

}  // namespace
}  // namespace shardwise
