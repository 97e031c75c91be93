#include "shardwise/loader/detail/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "loader/engine/trial_source.h"
#include "shardwise/loader/detail/order/shuffle.h"
#include "shardwise/loader/host_loader.h"
#include "testing/errors.h"
#include "testing/make_sharding.h"

namespace shardwise::detail {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Home anywhere_home() {
  return {[](const Mesh&, std::int64_t) { return true; },
          [](const Mesh&, std::int64_t, std::size_t bytes, const std::string&) {
            const std::shared_ptr<std::byte[]> memory(new std::byte[bytes]);
            return OwnedBytes{memory.get(), memory};
          }};
}

std::shared_ptr<const PatternSource> numbered_records(std::int64_t size,
                                                      PatternSource::Hook hook = {}) {
  return std::make_shared<const PatternSource>(size, std::vector<Field>{{"x", DType::u64, {}}},
                                               std::move(hook));
}

std::vector<FieldPlacement> placed_numbers() { return {{"x", make_sharding("d", "d=2")}}; }

// Throws at the batch whose samples are not those that they should be, and at every one after it.
TEST(Engine, FindsLostRepeatedAndSwappedSamples) {
  const struct {
    const char* name;
    Renumber renumber;
    std::int64_t batch;
  } cases[] = {
      {"repeated", [](std::int64_t n) { return n == 17 ? 16 : n; }, 4},
      {"of the batch before", [](std::int64_t n) { return n == 16 ? 15 : n; }, 4},
      {"all by one", [](std::int64_t n) { return n + 1; }, 0},
      {"swapped over batches", [](std::int64_t n) { return n == 3   ? 4
                                                           : n == 4 ? 3
                                                                    : n; }, 0},
      {"the last", [](std::int64_t n) { return n == 39 ? 0 : n; }, 9}};
  for (const auto& c : cases) {
    for (const LastBatch last : {LastBatch::drop, LastBatch::pad, LastBatch::wrap}) {
      SCOPED_TRACE(c.name);
      Engine engine(numbered_records(20), placed_numbers(),
                    {.batch_size = 4, .epochs = 2, .last_batch = last, .threads = 2}, {.seed = 1},
                    anywhere_home(), c.renumber);
      for (std::int64_t b = 0; b < c.batch; ++b) EXPECT_EQ(engine.next()->index, b);
      EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { engine.next(); }),
                  AllOf(HasSubstr("loader: batch " + std::to_string(c.batch) +
                                  ": delivered samples differ from the first " +
                                  std::to_string(4 * c.batch + 4) + " of the run: digest ")));
      message_of(ErrorCode::corrupt, [&] { engine.next(); });
    }
  }
}

// Within a batch the order of its rows is no matter of the digest, but their places are the
// order's.
TEST(Engine, RefusesAStateWhoseSamplesAreNotThoseBeforeIt) {
  const LoaderOptions options{.batch_size = 4, .epochs = 2};
  Engine engine(numbered_records(20), placed_numbers(), options, {.seed = 1}, anywhere_home());
  engine.next();
  const LoaderState good = engine.state();
  for (int bit = 0; bit < 128; ++bit) {
    LoaderState bad = good;
    (bit < 64 ? bad.digest.low : bad.digest.high) ^= std::uint64_t{1} << bit % 64;
    EXPECT_THAT(
        message_of(
            ErrorCode::corrupt,
            [&] { Engine(numbered_records(20), placed_numbers(), options, bad, anywhere_home()); }),
        HasSubstr("the state at batch 1: delivered samples differ from the first 4 of"));
  }
  LoaderState moved = good;
  moved.next_batch = 2;
  message_of(ErrorCode::corrupt, [&] {
    Engine(numbered_records(20), placed_numbers(), options, moved, anywhere_home());
  });
  LoaderState other = good;
  other.bad_records = BadRecords::mask;
  other.batch_size = 5;
  EXPECT_EQ(
      message_of(
          ErrorCode::invalid_argument,
          [&] { Engine(numbered_records(20), placed_numbers(), options, other, anywhere_home()); }),
      "loader: the state is of another run: batch_size is 4, the state has 5; bad_records is "
      "fail, the state has mask");
  EXPECT_EQ(
      Engine(numbered_records(20), placed_numbers(), options, good, anywhere_home()).next()->index,
      1);
}

// A padded last batch has delivered samples that a longer run would have put elsewhere.
TEST(Engine, RefusesToLengthenAWrappedRunThatWasPadded) {
  LoaderOptions options{.batch_size = 8, .last_batch = LastBatch::wrap};
  Engine engine(numbered_records(20), placed_numbers(), options, {.seed = 1}, anywhere_home());
  while (engine.next()) {
  }
  const LoaderState end = engine.state();
  EXPECT_EQ(Engine(numbered_records(20), placed_numbers(), options, end, anywhere_home()).next(),
            std::nullopt);
  options.epochs = 2;
  EXPECT_EQ(
      message_of(
          ErrorCode::invalid_argument,
          [&] { Engine(numbered_records(20), placed_numbers(), options, end, anywhere_home()); }),
      "loader: the state is of the end of a run of 1 epochs, whose last batch was padded: it "
      "cannot go on with more");
}

TEST(Engine, ResumesAnywhereInABillionRecordsWithoutALoop) {
  const std::int64_t size = 1'000'000'000;
  const auto source = numbered_records(size);
  const LoaderOptions options{.batch_size = 256, .epochs = 5, .last_batch = LastBatch::wrap};
  LoaderState state{.seed = 3, .next_batch = 900'000'000 / 256};
  source->fingerprint();
  const std::int64_t sampled = source->reads();
  for (int i = 0; i < 3; ++i) {
    Engine engine(source, placed_numbers(), options, state, anywhere_home());
    EXPECT_EQ(engine.next()->first_number, state.next_batch * 256);
    state = loader_state_from_json(to_json(engine.state()));
    const std::int64_t record = Shuffle(size, 3, 4).at(123'456'789);
    const std::int64_t number = 4 * size + 123'456'789;
    EXPECT_EQ(engine.step_of(record, 4), (BatchRow{number / 256, number % 256}));
  }
  EXPECT_LE(source->reads(), 4 * sampled + 3 * 4 * 256);  // no more than the ring held
}

TEST(Engine, KeepsWithinABudgetOfBytes) {
  // 64 bytes of x, a byte of mask and 4 of weights for each of 8 rows.
  constexpr std::size_t kBatch = 8 * (8 + 1 + 4);
  for (std::size_t budget = kBatch; budget <= 4 * kBatch; budget += kBatch / 2) {
    std::atomic<std::int64_t> live{0};
    std::int64_t most = 0;
    Home home = anywhere_home();
    home.allocate = [&](const Mesh&, std::int64_t, std::size_t bytes, const std::string&) {
      most = std::max(most, live += static_cast<std::int64_t>(bytes));  // one reader at a time
      const std::shared_ptr<std::byte> memory(new std::byte[bytes], [&, bytes](std::byte* data) {
        live -= static_cast<std::int64_t>(bytes);
        delete[] data;
      });
      return OwnedBytes{memory.get(), memory};
    };
    {
      Engine engine(numbered_records(80), placed_numbers(),
                    {.batch_size = 8, .prefetch = 3, .prefetch_bytes = budget, .threads = 2}, {},
                    home);
      while (engine.next()) {
      }
    }
    EXPECT_EQ(live, 0);
    // One is the consumer's for a moment.
    EXPECT_LE(most,
              static_cast<std::int64_t>((std::min<std::size_t>(3, budget / kBatch) + 1) * kBatch));
  }
  EXPECT_EQ(message_of(ErrorCode::resource_exhausted,
                       [&] {
                         Engine(numbered_records(80), placed_numbers(),
                                {.batch_size = 8, .prefetch_bytes = kBatch - 1}, {},
                                anywhere_home());
                       }),
            "loader: prefetch_bytes is 103, but one batch takes 104 bytes");
}

TEST(Engine, CutsARecordAtTheLastBucketOnlyIfAskedTo) {
  const auto source = std::make_shared<const TrialSource>(13);
  FieldPlacement text{.field = "text", .sharding = make_sharding("d,-", "d=2"), .buckets = {2, 5}};
  const LoaderOptions options{.batch_size = 1, .order = RecordOrder::sequential};
  {
    HostLoader loader(source, {text}, options);
    EXPECT_EQ(loader.next()->fields[0].shape, Shape({1, 2}));  // record 0 is empty
    EXPECT_EQ(
        message_of(ErrorCode::invalid_argument, [&] { loader.next(); }),
        "loader: batch 1, record 1, field \"text\": its length is 7, needed is 5 or less, the "
        "last bucket");
    EXPECT_EQ(loader.state().next_batch, 1);
  }
  text.truncate = true;
  const std::vector<FieldPlacement> placements{text, {"text.length", make_sharding("d", "d=2")}};
  HostLoader loader(source, placements, options);
  std::vector<std::int64_t> extents;
  std::vector<std::int32_t> lengths;
  while (const auto batch = loader.next()) {
    extents.push_back(batch->fields[0].shape[1]);
    const HostPart& part = batch->fields[1].parts[0];
    lengths.emplace_back();
    std::memcpy(&lengths.back(), part.data.get(), 4);
  }
  EXPECT_THAT(extents, ElementsAre(2, 5, 2, 5, 2, 5, 5, 5, 5, 5, 5, 5, 5));
  EXPECT_THAT(lengths, ElementsAre(0, 5, 1, 5, 2, 5, 3, 5, 4, 5, 5, 5, 5));
}

TEST(Engine, RejectsPlacementsThatDoNotFit) {
  const auto source = std::make_shared<const TrialSource>(13);
  const Sharding two = make_sharding("d,-", "d=2"), one = make_sharding("d", "d=2");
  const struct {
    const char* name;
    FieldPlacement placement;
    ErrorCode code;
    const char* message;
  } cases[] = {
      {"not ragged",
       {.field = "label", .sharding = one, .buckets = {2}},
       ErrorCode::invalid_argument,
       "loader: field \"label\" has buckets, but its records are all of shape []"},
      {"descending",
       {.field = "text", .sharding = two, .buckets = {4, 3}},
       ErrorCode::invalid_argument,
       "loader: field \"text\" has the buckets 4, 3, needed are ascending ones from 1 on"},
      {"zero",
       {.field = "text", .sharding = two, .buckets = {0, 3}},
       ErrorCode::invalid_argument,
       "has the buckets 0, 3"},
      {"no length",
       {"label.length", one},
       ErrorCode::invalid_argument,
       "field \"label.length\" is asked for, but the records of \"label\" are scalars"},
      {"rank of a length",
       {"text.length", two},
       ErrorCode::invalid_argument,
       "field \"text.length\" is placed by \"d,-\" of rank 2, needed is rank 1"},
      {"length of nothing",
       {"audio.length", one},
       ErrorCode::no_such_name,
       "no field \"audio\"; the source has"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(message_of(c.code, [&] { HostLoader(source, {c.placement}, {}); }),
                HasSubstr(c.message));
  }
}

TEST(Engine, EndsWhereNoSubstituteCanBeRead) {
  const auto source = numbered_records(
      10, [](std::size_t, std::int64_t) { throw Error(ErrorCode::io, "read: broken"); });
  class Unasked final : public Source {  // whose fingerprint is not read
   public:
    explicit Unasked(std::shared_ptr<const Source> source) : source_(std::move(source)) {}
    std::int64_t size() const override { return source_->size(); }
    std::span<const Field> fields() const override { return source_->fields(); }
    std::uint64_t fingerprint() const override { return 1; }
    void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
      source_->read(sample, boxes);
    }

   private:
    std::shared_ptr<const Source> source_;
  };
  Engine engine(
      std::make_shared<const Unasked>(source), placed_numbers(),
      {.batch_size = 2, .order = RecordOrder::sequential, .bad_records = BadRecords::substitute},
      {}, anywhere_home());
  EXPECT_EQ(message_of(ErrorCode::io, [&] { engine.next(); }),
            "loader: batch 0, record 0, field \"x\": read: broken; 16 substitutes cannot be read "
            "either");
  EXPECT_EQ(source->reads(), 1 + 16 + 1);  // the last to find the field at fault
}

// A batch's bucket is chosen before anything is read of it: what takes a bad record's place is no
// longer than that.
TEST(Engine, SubstitutesWhatFitsTheBatch) {
  const auto source = std::make_shared<const TrialSource>(
      60, [](std::int64_t record, std::size_t, const Box&) { return record % 5 == 0; });
  const Sharding whole = make_sharding("-,-", "d=1");
  int in_small_batches = 0;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    HostLoader loader(source, {{.field = "text", .sharding = whole, .buckets = {3, 7, 12}}},
                      {.batch_size = 2, .bad_records = BadRecords::substitute}, {.seed = seed});
    std::vector<std::int64_t> buckets;
    while (const auto batch = loader.next()) buckets.push_back(batch->fields[0].shape[1]);
    const BadRecordLedger ledger = loader.bad_records();
    EXPECT_EQ(ledger.count, 12);
    for (const BadRecord& bad : ledger.first) {
      const std::int64_t bucket = buckets[static_cast<std::size_t>(bad.batch)];
      EXPECT_NE(bad.substitute % 5, 0);
      EXPECT_LE(TrialSource::text_length(bad.substitute), bucket);
      if (bucket == 3) ++in_small_batches;
    }
  }
  EXPECT_GT(in_small_batches, 0);
}

TEST(Engine, PassesOverNothingThatIsNotABadRecord) {
  for (const BadRecords policy : {BadRecords::substitute, BadRecords::mask}) {
    for (const ErrorCode code : {ErrorCode::invalid_argument, ErrorCode::unsupported,
                                 ErrorCode::resource_exhausted, ErrorCode::cancelled}) {
      std::atomic<bool> armed{false};
      const auto source = numbered_records(10, [&](std::size_t, std::int64_t record) {
        if (armed && record == 3) throw Error(code, "not mine");
      });
      source->fingerprint();
      // The fingerprint is read before the first allocation.
      Home home = anywhere_home();
      const auto allocate = home.allocate;
      home.allocate = [&, allocate](const Mesh& mesh, std::int64_t position, std::size_t bytes,
                                    const std::string& label) {
        armed = true;
        return allocate(mesh, position, bytes, label);
      };
      Engine engine(source, placed_numbers(),
                    {.batch_size = 2, .order = RecordOrder::sequential, .bad_records = policy}, {},
                    home);
      EXPECT_TRUE(engine.next().has_value());
      EXPECT_EQ(message_of(code, [&] { engine.next(); }),
                "loader: batch 1, record 3, field \"x\": not mine");
      EXPECT_EQ(engine.bad_records().count, 0);
    }
  }
}

TEST(Engine, KeepsTheFirstThousandBadRecords) {
  const auto source = std::make_shared<const TrialSource>(
      30, [](std::int64_t record, std::size_t, const Box&) { return record % 2 == 0; });
  HostLoader loader(
      source, cut_batch(*source, Mesh::parse("d=2"), "d"),
      {.batch_size = 30, .epochs = 100, .bad_records = BadRecords::mask, .threads = 3});
  while (loader.next()) {
  }
  const BadRecordLedger ledger = loader.bad_records();
  EXPECT_EQ(ledger.count, 1500);
  ASSERT_EQ(ledger.first.size(), 1000u);
  for (std::size_t i = 1; i < ledger.first.size(); ++i) {
    const BadRecord &a = ledger.first[i - 1], &b = ledger.first[i];
    EXPECT_TRUE(a.batch < b.batch || (a.batch == b.batch && a.row < b.row));
  }
}

TEST(Engine, SaysWhichStepsThereAreNot) {
  Engine engine(numbered_records(10), placed_numbers(), {.batch_size = 4, .epochs = 3}, {},
                anywhere_home());
  for (const auto& at : {std::pair{-1, 0}, std::pair{10, 0}, std::pair{0, -1}, std::pair{0, 3}}) {
    EXPECT_THAT(
        message_of(ErrorCode::invalid_argument, [&] { engine.step_of(at.first, at.second); }),
        HasSubstr("has no step, needed is records 0 to 9 and epochs 0 to 2"));
  }
}

// No slab, entry or ticket is left, however long a run is.
TEST(Engine, RunsTenThousandEpochsInBoundedMemory) {
  std::atomic<std::int64_t> live{0}, most{0};
  std::int64_t given = 0;
  HostLoaderOptions host;
  host.allocate = [&](std::int64_t, std::size_t bytes) {
    ++given;
    most = std::max(most.load(), ++live);
    return std::shared_ptr<std::byte>(new std::byte[bytes], [&](std::byte* data) {
      --live;
      delete[] data;
    });
  };
  {
    HostLoader loader(numbered_records(8), placed_numbers(),
                      {.batch_size = 3,
                       .epochs = 10'000,
                       .last_batch = LastBatch::wrap,
                       .prefetch = 2,
                       .threads = 2},
                      {}, host);
    std::int64_t batches = 0;
    while (loader.next()) ++batches;
    EXPECT_EQ(batches, (80'000 + 2) / 3);
    EXPECT_EQ(given, 3 * 2 * batches);
  }
  EXPECT_EQ(live, 0);
  EXPECT_LE(most, 3 * 2 * 4);  // the ring's, the one delivered and the one that is begun
}

}  // namespace
}  // namespace shardwise::detail
