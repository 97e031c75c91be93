// Processes are threads here, and each has a directory as its host's disk.

#include "shardwise/tiers/detail/assembly.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/errors.h"
#include "testing/flip.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/socket_transport.h"
#include "testing/temp_dir.h"
#include "testing/tier_job.h"

namespace shardwise::tiers_detail {
namespace {

namespace fs = std::filesystem;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

/// "a" i32 [8] in files 0 and 1, "b" i32 [4] in file 2.
HandMadeCheckpoint made_of_three() {
  return HandMadeCheckpoint({{.name = "a",
                              .dtype = DType::i32,
                              .shape = {8},
                              .pieces = {Box({0}, {4}), Box({4}, {8})},
                              .data = counting_values(DType::i32, {8})},
                             {.name = "b",
                              .dtype = DType::i32,
                              .shape = {4},
                              .pieces = {Box({0}, {4})},
                              .data = counting_values(DType::i32, {4}, 50)}},
                            3, 5);
}

class AssembleTest : public testing::Test {
 protected:
  fs::path fast(int rank) const { return host_of(dir_.path(), rank); }
  fs::path own(int rank) const { return process_of(dir_.path(), rank); }
  fs::path file(int rank, std::size_t number) const {
    return own(rank) / "step-00000005" / checkpoint_.manifest.files[number].name;
  }
  std::uint64_t bytes(std::size_t number) const { return checkpoint_.manifest.files[number].bytes; }
  bool is_good(int rank, std::size_t number) const {
    return fs::exists(file(rank, number)) &&
           file_bytes(file(rank, number)) == checkpoint_.files[number].bytes;
  }

  /// The rank's host has the step, with these files of it.
  void give(int rank, const std::vector<std::size_t>& files) const {
    fs::create_directories(own(rank));
    checkpoint_.write(own(rank));
    for (std::size_t f = 0; f < checkpoint_.files.size(); ++f) {
      if (std::ranges::find(files, f) == files.end()) fs::remove(file(rank, f));
    }
  }

  /// Each process's step and error.
  struct Outcome {
    std::vector<AssembledStep> steps;
    std::vector<std::string> errors;
  };
  Outcome assembled(const std::vector<std::vector<TensorBox>>& needed) const {
    Outcome outcome;
    outcome.steps.resize(needed.size());
    outcome.errors = run_ranks(
        static_cast<int>(needed.size()), {}, [&](std::shared_ptr<SocketTransport> transport) {
          const int rank = transport->rank();
          const ProcessGroup group(std::move(transport), std::chrono::minutes(1));
          fs::create_directories(own(rank));
          const Inventory inventory = take_inventory(*posix_file_system(), std::vector{fast(rank)});
          const AllInventories all = gather_inventories(group, inventory);
          ASSERT_EQ(all.steps.size(), 1u);
          const auto r = static_cast<std::size_t>(rank);
          outcome.steps[r] = assemble(
              group, *posix_file_system(), {own(rank), {{fast(rank)}, durable_}}, inventory,
              *all.steps.begin(), [&](const CheckpointReader&) { return needed[r]; });
        });
    return outcome;
  }

  const HandMadeCheckpoint checkpoint_ = made_of_three();
  const TempDir dir_;
  const fs::path durable_ = dir_ / "durable";
  const std::vector<TensorBox> all_{{"a", Box({0}, {8})}, {"b", Box({0}, {4})}};
};

/// Why a step is not wanted; "" if it is.
std::string refusal(const AssembledStep& step) {
  if (!step.refused) return "";
  try {
    std::rethrow_exception(step.refused);
  } catch (const Error& e) {
    return e.what();
  }
}

TEST_F(AssembleTest, EachProcessTakesTheFilesThatItNeedsAndHasNot) {
  give(0, {0});
  give(1, {1, 2});
  const Outcome outcome = assembled({all_, {{"a", Box({1}, {3})}}});
  EXPECT_THAT(outcome.errors, Each(""));
  EXPECT_EQ(outcome.steps[0].directory, own(0) / "step-00000005");
  EXPECT_EQ(outcome.steps[0].files_taken, 2);
  EXPECT_EQ(outcome.steps[0].bytes_taken, bytes(1) + bytes(2));
  EXPECT_EQ(outcome.steps[1].files_taken, 1);
  EXPECT_EQ(outcome.steps[1].bytes_taken, bytes(0));
  for (const std::size_t f : {0u, 1u, 2u}) {
    EXPECT_TRUE(is_good(0, f)) << f;
    EXPECT_TRUE(is_good(1, f)) << f;
  }
  for (const AssembledStep& step : outcome.steps) {
    EXPECT_EQ(step.problem, "");
    EXPECT_THAT(step.damaged, ElementsAre());
  }
}

TEST_F(AssembleTest, TakesNothingThatIsNotNeeded) {
  give(0, {0, 1});
  give(1, {2});
  const Outcome outcome = assembled({{{"a", Box({5}, {6})}}, {}});
  EXPECT_THAT(outcome.errors, Each(""));
  EXPECT_EQ(outcome.steps[0].files_taken, 0);
  EXPECT_EQ(outcome.steps[1].files_taken, 0);
  EXPECT_FALSE(fs::exists(file(0, 2)));
  EXPECT_FALSE(fs::exists(file(1, 0)));
}

TEST_F(AssembleTest, AProcessWithoutTheStepGetsItsManifestAndPublishesIt) {
  give(1, {0, 1, 2});
  const Outcome outcome = assembled({all_, all_, {{"b", Box({0}, {1})}}});
  EXPECT_THAT(outcome.errors, Each(""));
  EXPECT_EQ(outcome.steps[0].files_taken, 3);
  EXPECT_EQ(outcome.steps[2].files_taken, 1);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(file_text(own(rank) / "step-00000005/manifest.json"),
              detail::print_manifest(checkpoint_.manifest));
    EXPECT_TRUE(is_good(rank, 2)) << rank;
  }
  EXPECT_TRUE(is_good(0, 0));
  EXPECT_FALSE(fs::exists(file(2, 0)));
}

TEST_F(AssembleTest, AnotherCopyReplacesABadOne) {
  give(0, {0, 1, 2});
  give(1, {0});
  give(2, {0, 1, 2});
  flip(file(0, 0), 0, std::byte{1});
  flip(file(1, 0), bytes(0) - 1, std::byte{1});
  const Outcome outcome = assembled({all_, all_, all_});
  EXPECT_THAT(outcome.errors, Each(""));
  EXPECT_EQ(outcome.steps[0].files_taken, 1);
  EXPECT_EQ(outcome.steps[1].files_taken, 3);
  EXPECT_EQ(outcome.steps[2].files_taken, 0);
  for (const int rank : {0, 1, 2}) {
    for (const std::size_t f : {0u, 1u, 2u}) EXPECT_TRUE(is_good(rank, f)) << rank << " " << f;
    const AssembledStep& step = outcome.steps[static_cast<std::size_t>(rank)];
    EXPECT_EQ(step.problem, "");
    EXPECT_THAT(step.damaged,
                ElementsAre(HasSubstr(file(0, 0).string()), HasSubstr(file(1, 0).string())));
  }
}

TEST_F(AssembleTest, AllSayTheSameIfNoGoodCopyIsLeft) {
  give(0, {0, 1, 2});
  give(1, {0, 1, 2});
  flip(file(0, 2), 0, std::byte{1});
  flip(file(1, 2), 0, std::byte{1});
  const Outcome outcome = assembled({all_, all_});
  EXPECT_THAT(outcome.errors, Each(""));
  EXPECT_THAT(
      outcome.steps[0].problem,
      testing::StartsWith("no good copy of " + checkpoint_.manifest.files[2].name + " is left: "));
  EXPECT_EQ(outcome.steps[1].problem, outcome.steps[0].problem);
  EXPECT_TRUE(outcome.steps[0].directory.empty());

  // No process needs the bad file.
  EXPECT_EQ(assembled({{{"a", Box({0}, {8})}}, {}}).steps[0].problem, "");
}

TEST_F(AssembleTest, RefusesBoxesThatTheStepHasNot) {
  give(0, {0, 1, 2});
  const auto error = [&](const TensorBox& box) { return refusal(assembled({{box}}).steps[0]); };
  EXPECT_EQ(error({"c", Box({0}, {1})}), "find the latest step: step 5 has no tensor \"c\"");
  EXPECT_THAT(error({"a", Box({0}, {9})}), HasSubstr("leaves tensor \"a\" of shape [8]"));
  EXPECT_THAT(error({"a", Box({0, 0}, {1, 1})}), HasSubstr("leaves tensor \"a\" of shape [8]"));
}

TEST_F(AssembleTest, AllKnowOfARefusalAndNobodyWaits) {
  give(0, {0, 1, 2});
  const std::vector<TensorBox> c{{"c", Box({0}, {1})}}, wide{{"a", Box({0}, {9})}};
  const Outcome two = assembled({wide, all_, c});
  EXPECT_THAT(two.errors, Each(""));
  EXPECT_THAT(refusal(two.steps[0]), HasSubstr("leaves tensor \"a\" of shape [8]"));
  EXPECT_THAT(refusal(two.steps[1]),
              testing::AllOf(testing::StartsWith("find the latest step: rank 0: "),
                             HasSubstr("box [0:9] leaves tensor")));
  EXPECT_EQ(refusal(two.steps[2]), "find the latest step: step 5 has no tensor \"c\"");
  for (const AssembledStep& step : two.steps) EXPECT_TRUE(step.directory.empty());
}

TEST(AssemblyMessage, IsReadAsItWasSent) {
  const AssemblyState state{{{3, 1, "its hash"}, {0, 0, ""}}, {0, 2, 3}, "it does not fit"};
  EXPECT_EQ(decode_assembly_state(encode(state), 4, 2), state);
  EXPECT_EQ(decode_assembly_state(encode(AssemblyState{}), 0, 1), AssemblyState{});
}

TEST(AssemblyMessage, IsRefusedIfItSpeaksOfWhatThereIsNot) {
  const auto refusal = [](const AssemblyState& state) {
    return message_of(ErrorCode::invalid_argument,
                      [&] { decode_assembly_state(encode(state), 4, 2); });
  };
  EXPECT_THAT(refusal({{{4, 0, ""}}, {}}), HasSubstr("a file that the step does not have"));
  EXPECT_THAT(refusal({{}, {-1}}), HasSubstr("a file that the step does not have"));
  EXPECT_THAT(refusal({{{0, 2, ""}}, {}}), HasSubstr("a rank that there is not"));
  EXPECT_THAT(refusal({{{0, -1, ""}}, {}}), HasSubstr("a rank that there is not"));
  EXPECT_THAT(refusal({{}, {1, 0}}), HasSubstr("files out of order"));
  EXPECT_THAT(refusal({{}, {1, 1}}), HasSubstr("files out of order"));
  const Bytes message = encode(AssemblyState{{{3, 1, "its hash"}}, {0, 2}});
  for (std::size_t i = 0; i < message.size(); ++i) {
    Bytes damaged = message;
    damaged[i] ^= std::byte{1};
    message_of(ErrorCode::corrupt, [&] { decode_assembly_state(damaged, 4, 2); });
  }
}

}  // namespace
}  // namespace shardwise::tiers_detail
