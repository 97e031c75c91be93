#include "shardwise/tiers/detail/inventory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardwise/storage/hash.h"
#include "testing/errors.h"
#include "testing/flip.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/socket_transport.h"
#include "testing/temp_dir.h"

namespace shardwise::tiers_detail {
namespace {

namespace fs = std::filesystem;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

/// A step of two files.
HandMadeCheckpoint made_step(std::int64_t step, std::uint64_t first = 1) {
  HandMadeCheckpoint checkpoint({{.name = "a",
                                  .shape = {8},
                                  .pieces = {Box({0}, {4}), Box({4}, {8})},
                                  .data = counting_values(DType::f32, {8}, first)}},
                                2, step);
  checkpoint.seal();
  return checkpoint;
}

SavedStep saved(const HandMadeCheckpoint& checkpoint) {
  return {checkpoint.manifest.step, checkpoint.manifest.id,
          to_hex(hash128(detail::print_manifest(checkpoint.manifest)))};
}

TEST(ProcessDirectory, IsNamedByItsRank) {
  EXPECT_EQ(process_directory(3), "process-00003");
  for (const int rank : {0, 7, 99'999, 100'000}) {
    EXPECT_EQ(process_of_directory(process_directory(rank)), rank);
  }
  for (const char* const name :
       {"", "process-", "process-3", "process-000003", "process--0001", "process-+0001",
        "process-0000x", "process-00003x", " process-00003", "process-99999999999", "step-00003"}) {
    EXPECT_EQ(process_of_directory(name), -1) << name;
  }
}

class TakeInventory : public testing::Test {
 protected:
  static std::string file(const HandMadeCheckpoint& checkpoint, std::size_t number) {
    return checkpoint.manifest.files[number].name;
  }
  fs::path write(const HandMadeCheckpoint& checkpoint, const std::string& process) const {
    fs::create_directories(dir_ / process);
    return checkpoint.write(dir_ / process);
  }
  Inventory taken() const { return take_inventory(*posix_file_system(), std::vector{dir_.path()}); }

  const TempDir dir_;
};

TEST_F(TakeInventory, FindsEveryCopyOfEachFileOfItsSize) {
  const HandMadeCheckpoint step = made_step(5);
  const fs::path zero = write(step, "process-00000"), one = write(step, "process-00001"),
                 two = write(step, "process-00012");
  fs::remove(zero / file(step, 1));
  fs::resize_file(one / file(step, 0), 10);
  flip(two / file(step, 0), 0, std::byte{1});  // bytes are looked at when they are needed
  write(step, "process-1");
  write(step, "elsewhere");

  const Inventory inventory = taken();
  EXPECT_THAT(inventory.damaged, ElementsAre());
  ASSERT_EQ(inventory.steps.size(), 1u);
  const auto& [name, held] = *inventory.steps.begin();
  EXPECT_EQ(name, saved(step));
  EXPECT_EQ(held.num_files, 2);
  EXPECT_EQ(held.generation, 1);
  EXPECT_EQ(held.manifest, detail::print_manifest(step.manifest));
  EXPECT_THAT(held.directories, ElementsAre(zero, one, two));
  EXPECT_THAT(held.paths,
              ElementsAre(Pair(0, ElementsAre(zero / file(step, 0), two / file(step, 0))),
                          Pair(1, ElementsAre(one / file(step, 1), two / file(step, 1)))));
}

TEST_F(TakeInventory, TellsStepsAndSavesOfAStepApart) {
  const HandMadeCheckpoint five = made_step(5), again = made_step(5, 100), six = made_step(6);
  write(five, "process-00000");
  write(six, "process-00000");
  const fs::path newer = write(again, "process-00001");
  fs::rename(newer, newer.parent_path() / to_string(detail::StepName{.step = 5, .generation = 3}));
  const Inventory inventory = taken();
  ASSERT_EQ(inventory.steps.size(), 3u);
  EXPECT_EQ(inventory.steps.at(saved(five)).generation, 1);
  EXPECT_EQ(inventory.steps.at(saved(again)).generation, 3);
  EXPECT_EQ(inventory.steps.at(saved(six)).paths.size(), 2u);
}

TEST_F(TakeInventory, PassesOverDamagedManifestsAndSaysWhy) {
  const HandMadeCheckpoint step = made_step(5);
  const fs::path zero = write(step, "process-00000");
  write(step, "process-00001");
  flip(zero / "manifest.json", 20, std::byte{1});
  const Inventory inventory = taken();
  ASSERT_EQ(inventory.damaged.size(), 1u);
  EXPECT_THAT(inventory.damaged[0], HasSubstr((zero / "manifest.json").string()));
  ASSERT_EQ(inventory.steps.size(), 1u);
  EXPECT_EQ(inventory.steps.begin()->second.directories.size(), 1u);
}

TEST_F(TakeInventory, FindsNothingWhereNothingIs) {
  fs::create_directories(dir_ / "process-00000");
  EXPECT_TRUE(taken().steps.empty());
  EXPECT_TRUE(taken().damaged.empty());
}

using Paths = std::map<std::int64_t, std::vector<fs::path>>;

HeldFiles held(std::int64_t generation, std::int64_t num_files, Paths paths) {
  HeldFiles held;
  held.generation = generation;
  held.num_files = num_files;
  held.paths = std::move(paths);
  return held;
}

Inventory some_inventory() {
  Inventory inventory;
  inventory.steps[{7, "id", "hash"}] = held(2, 5, {{0, {"a", "b"}}, {4, {"c"}}});
  inventory.steps[{8, "id", "hash"}] = held(1, 1, {});
  inventory.damaged = {"one", "two"};
  return inventory;
}

TEST(InventoryMessage, TellsWhichCopiesThereAreWithoutTheirPaths) {
  const Inventory told = decode_inventory(encode(some_inventory()));
  EXPECT_EQ(told.damaged, some_inventory().damaged);
  ASSERT_EQ(told.steps.size(), 2u);
  const HeldFiles& first = told.steps.at({7, "id", "hash"});
  EXPECT_EQ(first.generation, 2);
  EXPECT_EQ(first.num_files, 5);
  EXPECT_THAT(first.paths, ElementsAre(Pair(0, ElementsAre("", "")), Pair(4, ElementsAre(""))));
  EXPECT_TRUE(told.steps.at({8, "id", "hash"}).paths.empty());

  Inventory many;
  many.steps[{}] = held(1, 1, {{0, std::vector<fs::path>(70)}});
  EXPECT_EQ(decode_inventory(encode(many)).steps.begin()->second.paths.at(0).size(), 64u);
}

TEST(InventoryMessage, IsRefusedIfItIsNoneOrContradictsItself) {
  const Bytes message = encode(some_inventory());
  for (std::size_t i = 0; i < message.size(); ++i) {
    Bytes damaged = message;
    damaged[i] ^= std::byte{1};
    message_of(ErrorCode::corrupt, [&] { decode_inventory(damaged); });
  }
  const auto refusal = [](const Paths& paths) {
    Inventory inventory;
    inventory.steps[{}] = held(1, 1, paths);
    return message_of(ErrorCode::invalid_argument, [&] { decode_inventory(encode(inventory)); });
  };
  EXPECT_THAT(refusal({{1, {"a"}}}), HasSubstr("found a file that its step does not have"));
  EXPECT_THAT(refusal({{-1, {"a"}}}), HasSubstr("found a file that its step does not have"));
  EXPECT_THAT(refusal({{0, {}}}), HasSubstr("found too many copies of a file, or none"));
}

TEST(GatherInventories, PutsTogetherWhatAllProcessesHave) {
  const SavedStep step{7, "id", "hash"}, other{8, "id", "hash"};
  const auto errors = run_ranks(3, {}, [&](std::shared_ptr<SocketTransport> transport) {
    const int rank = transport->rank();
    const ProcessGroup group(std::move(transport));
    Inventory own;
    own.damaged = {"the same", "of rank " + std::to_string(rank % 2)};
    if (rank == 0) own.steps[step] = held(1, 2, {{0, {"a", "b"}}});
    if (rank == 2) own.steps[step] = held(4, 2, {{0, {"c"}}});
    if (rank == 2) own.steps[other] = held(1, 1, {{0, {"d"}}});
    const AllInventories all = gather_inventories(group, own);
    EXPECT_THAT(all.damaged, ElementsAre("the same", "of rank 0", "of rank 1"));
    ASSERT_EQ(all.steps.size(), 2u);
    const StepHolders& holders = all.steps.at(step);
    EXPECT_EQ(holders.generation, 4);
    EXPECT_EQ(holders.num_files, 2);
    EXPECT_THAT(holders.manifest, ElementsAre(0, 2));
    EXPECT_THAT(holders.of, ElementsAre(Pair(0, ElementsAre(0, 0, 2))));
    EXPECT_FALSE(holders.is_whole());
    EXPECT_TRUE(all.steps.at(other).is_whole());
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace shardwise::tiers_detail
