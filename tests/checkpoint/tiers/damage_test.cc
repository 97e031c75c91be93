// Restarts with damaged files in the fast tier, on hosts that are directories and processes that
// are threads.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/tiers/tiers.h"
#include "testing/flip.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/tier_job.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using testing::Each;
using testing::HasSubstr;

/// Changes a byte in the middle of a file, which keeps its size, or so far before it.
void flip(const fs::path& path, std::size_t before = 0) {
  fs::permissions(path, fs::perms::owner_all);
  shardwise::flip(path, fs::file_size(path) / 2 - before, std::byte{1});
}

/// Three hosts with steps 1 to 4, each file on two of them, steps 1 and 3 also in the durable root.
class DamagedTiers : public TierJob {
 protected:
  static std::vector<HostTensor> at_step(std::int64_t step) {
    // No value of a step is one of another step.
    return model(Mesh::parse("data=4,model=3"), "data,model", static_cast<std::uint64_t>(step * 3));
  }

  void SetUp() override {
    const auto errors = on_ranks(
        3, 1, {.local = {.copies = 1}, .drain = {.every = 2}, .write = {.fast_codec = Codec::none}},
        [&](Devices&, TieredManager& tiers) {
          for (std::int64_t step = 1; step <= 4; ++step)
            tiers.save(step, sources_of(at_step(step)));
          tiers.close();
        });
    ASSERT_THAT(errors, Each(""));
  }

  fs::path step_4(int rank) const { return fast_step(dir_.path(), rank, 4); }
  static std::string file_of(int rank) { return detail::shard_file_name(rank, 3); }
  /// The host that has the copy of the rank's file.
  int copy_of(int rank) const {
    for (int other = 0; other < 3; ++other) {
      if (other != rank && fs::exists(step_4(other) / file_of(rank))) return other;
    }
    return -1;
  }

  /// Restarts, and expects that all ranks get the step, with right values, and are told this.
  void expect_step(Tier tier, std::int64_t step, const std::string& told) {
    const auto errors = on_ranks(3, 1, {}, [&](Devices& devices, TieredManager& tiers) {
      const auto tensors = at_step(step);
      const auto requests = requests_for(tensors, Mesh::line(12), "0,-");
      const auto found = tiers.latest(addressable_boxes(devices, requests));
      ASSERT_TRUE(found.has_value());
      EXPECT_THAT(found->to_string(), HasSubstr(told));
      expect_latest(devices, tiers, tier, step, tensors, requests);
    });
    EXPECT_THAT(errors, Each(""));
  }
};

TEST_F(DamagedTiers, OneManifestOfSeveralIsPassedOver) {
  flip(step_4(1) / "manifest.json");
  expect_step(Tier::fast, 4, "damaged: read manifest");
  const fs::path whole = process_of(dir_.path(), 1) / "step-00000004.g2";
  EXPECT_NO_THROW((TierStep{.step = {4, 2, whole}}.open())) << "a later generation";
}

TEST_F(DamagedTiers, AnOversizedManifestIsPassedOver) {
  fs::permissions(step_4(2) / "manifest.json", fs::perms::owner_all);
  fs::resize_file(step_4(2) / "manifest.json", std::uintmax_t{1} << 36);
  expect_step(Tier::fast, 4, "it has 68719476736 bytes");
}

TEST_F(DamagedTiers, AFlippedBitInOnesOwnFileIsHealedByTheCopy) {
  flip(step_4(1) / file_of(1));
  expect_step(Tier::fast, 4, "damaged: read " + (step_4(1) / file_of(1)).string());
  EXPECT_EQ(file_bytes(step_4(1) / file_of(1)), file_bytes(step_4(copy_of(1)) / file_of(1)));
  // Nothing else has come into the directory.
  for (int rank = 0; rank < 3; ++rank) {
    for (const auto& entry : fs::directory_iterator(step_4(rank))) {
      EXPECT_THAT(entry.path().filename().string(),
                  testing::AnyOf("manifest.json", file_of(0), file_of(1), file_of(2)));
    }
  }
}

TEST_F(DamagedTiers, TwoBadCopiesAreOneGoodOneTogether) {
  const fs::path own = step_4(1) / file_of(1), other = step_4(copy_of(1)) / file_of(1);
  const std::vector<std::byte> good = file_bytes(own);
  flip(own);
  flip(other, 40'000);  // another tensor's chunk
  expect_step(Tier::fast, 4, "of the fast tier");
  EXPECT_EQ(file_bytes(own), good);
  EXPECT_EQ(file_bytes(other), good);
}

TEST_F(DamagedTiers, TheDurableStepHasTheChunksThatNoHostHas) {
  for (int rank = 0; rank < 3; ++rank) {
    fs::remove_all(step_4(rank));
    const fs::path step_3 = step_4(rank).parent_path() / "step-00000003";
    for (const std::size_t before : {std::size_t{0}, std::size_t{40'000}}) {
      if (fs::exists(step_3 / file_of(1))) flip(step_3 / file_of(1), before);
    }
  }
  expect_step(Tier::fast, 3, "step 3 of the fast tier");
  fs::remove_all(durable() / "step-00000003");
  expect_step(Tier::fast, 3, "step 3 of the fast tier");
}

// Both copies of a rank's file are bad: the durable root is taken once the rest of the fast tier is
// older.
TEST_F(DamagedTiers, AStepWithNoGoodCopyIsPassedOverForTheDurableOne) {
  flip(step_4(copy_of(1)) / file_of(1));
  flip(step_4(1) / file_of(1));
  expect_step(Tier::fast, 3, "not step 4 of the fast tier: no good copy of " + file_of(1));
  fs::remove_all(fast_step(dir_.path(), 0, 3));
  fs::remove_all(fast_step(dir_.path(), 1, 3));
  expect_step(Tier::durable, 3, "step 3 of the durable tier; not step 4 of the fast tier");
}

TEST_F(DamagedTiers, AStepThatWasPassedOverIsReplacedWhenItIsSavedAgain) {
  flip(step_4(copy_of(1)) / file_of(1));
  flip(step_4(1) / file_of(1));
  const auto errors =
      on_ranks(3, 1, {.local = {.copies = 1}}, [&](Devices& devices, TieredManager& tiers) {
        const auto requests = requests_for(at_step(3), Mesh::line(12), "0,-");
        expect_latest(devices, tiers, Tier::fast, 3, at_step(3), requests);
        tiers.save(4, sources_of(at_step(5)));
        tiers.close();
        expect_latest(devices, tiers, Tier::fast, 4, at_step(5), requests);
        try {
          tiers.save(4, sources_of(at_step(5)));
          ADD_FAILURE() << "it is whole";
        } catch (const Error& e) {
          EXPECT_THAT(std::string(e.what()), HasSubstr("step 4"));
        }
      });
  EXPECT_THAT(errors, Each(""));
}

TEST_F(DamagedTiers, FilesOfAnyKindInPlaceOfAShardFileAreNoCopies) {
  for (const char* kind : {"missing", "cut", "folder", "link"}) {
    SCOPED_TRACE(kind);
    const fs::path path = step_4(2) / file_of(2);
    fs::remove_all(path);
    if (kind == std::string_view("cut")) std::ofstream(path) << "short";
    if (kind == std::string_view("folder")) fs::create_directory(path);
    if (kind == std::string_view("link")) fs::create_symlink("/dev/zero", path);
    expect_step(Tier::fast, 4, "step 4 of the fast tier");
    EXPECT_EQ(file_bytes(path), file_bytes(step_4(copy_of(2)) / file_of(2)));
  }
}

}  // namespace
}  // namespace shardwise
