#include "shardwise/loader/stages/drill.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "loader/pattern_source.h"
#include "shardwise/loader/host_loader.h"
#include "shardwise/shard/error.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using Kind = DrillFault::Kind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<PatternSource> patterned() {
  return std::make_shared<PatternSource>(40, std::vector<Field>{{"x", DType::i64, {}}});
}

std::vector<std::byte> bytes_of(const HostBatch& batch) {
  const HostPart& part = batch.fields[0].parts[0];
  return {part.data.get(), part.data.get() + part.bytes};
}

/// The rest of a run of one device.
std::vector<std::vector<std::byte>> run(const std::shared_ptr<const Source>& source,
                                        const LoaderOptions& options, const LoaderState& state) {
  HostLoader loader(source, cut_batch(*source, Mesh::line(1), "0"), options, state);
  std::vector<std::vector<std::byte>> all;
  while (const auto batch = loader.next()) all.push_back(bytes_of(*batch));
  return all;
}

TEST(ParseDrill, TakesEveryKind) {
  EXPECT_THAT(parse_drill("corrupt:17,io:0,exception:3,slow:20,kill:900"),
              ElementsAre(DrillFault{Kind::corrupt, 17}, DrillFault{Kind::io, 0},
                          DrillFault{Kind::exception, 3}, DrillFault{Kind::slow, 20},
                          DrillFault{Kind::kill, 900}));
  for (const char* bad : {"", "corrupt", "corrupt:", "corrupt:x", "corrupt:-1", "corrupt:1,",
                          "odd:1", "corrupt:1 ", "corrupt:99999999999999999999"}) {
    EXPECT_THAT(
        message_of(ErrorCode::invalid_argument, [&] { parse_drill(bad); }),
        HasSubstr("needed is KIND:RECORD, where the kind is corrupt, io, exception, slow or kill"))
        << bad;
  }
}

TEST(Drill, ThrowsForItsRecordsAlone) {
  const auto source = drill(patterned(), parse_drill("io:5,corrupt:3,exception:7"));
  std::int64_t value = 0;
  const auto read = [&](std::int64_t record) {
    source->read_box(0, record, {reinterpret_cast<std::byte*>(&value), Box()});
  };
  EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read(3); }),
              HasSubstr("drill: record 3: corrupt, as asked for"));
  EXPECT_THAT(message_of(ErrorCode::io, [&] { read(5); }), HasSubstr("record 5: io"));
  EXPECT_THROW(read(7), std::runtime_error);
  read(4);
  EXPECT_EQ(static_cast<std::uint64_t>(value), PatternSource::element(0, 4, 0));
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument, [&] { drill(patterned(), parse_drill("slow:40")); }),
      HasSubstr("there is no record 40 among 40"));
}

// A rehearsal: the job dies of a record, and goes on without the drill; the batches are those of a
// run in which nothing went wrong.
TEST(Drill, LeavesTheRunWhatItIs) {
  const LoaderOptions options{.batch_size = 4, .epochs = 2};
  const auto plain = patterned();
  const auto expected = run(plain, options, {.seed = 3});
  const auto trial = drill(plain, parse_drill("exception:11"));
  HostLoader loader(trial, cut_batch(*trial, Mesh::line(1), "0"), options, {.seed = 3});
  std::vector<std::vector<std::byte>> delivered;
  LoaderState state;
  try {
    for (;;) {
      state = loader.state();
      delivered.push_back(bytes_of(loader.next().value()));
    }
  } catch (const std::exception& error) {
    EXPECT_THAT(error.what(), HasSubstr("record 11: exception, as asked for"));
  }
  EXPECT_LT(delivered.size(), 10u);  // in the first epoch
  const auto rest = run(plain, options, state);
  delivered.insert(delivered.end(), rest.begin(), rest.end());
  EXPECT_EQ(delivered, expected);
}

TEST(Drill, SubstitutesAreTheSameEachTime) {
  const LoaderOptions options{.batch_size = 4, .bad_records = BadRecords::substitute, .threads = 3};
  const auto trial = drill(patterned(), parse_drill("corrupt:3,io:20,slow:21"));
  const auto first = run(trial, options, {.seed = 3});
  EXPECT_EQ(run(trial, options, {.seed = 3}), first);
  const auto expected = run(patterned(), options, {.seed = 3});
  ASSERT_EQ(first.size(), expected.size());
  EXPECT_EQ(std::ranges::mismatch(first, expected).in1 == first.end(), false);
}

TEST(Drill, KillsTheProcess) {
  std::int64_t value = 0;
  const auto source = drill(patterned(), parse_drill("kill:1"));
  EXPECT_EXIT(source->read_box(0, 1, {reinterpret_cast<std::byte*>(&value), Box()}),
              ::testing::KilledBySignal(SIGKILL), "");
}

}  // namespace
}  // namespace shardwise
