#include "shardwise/loader/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "loader/pattern_source.h"
#include "shardwise/loader/detail/order/shuffle.h"
#include "shardwise/loader/stages/select.h"
#include "testing/errors.h"
#include "testing/make_sharding.h"

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::shared_ptr<const PatternSource> pattern(std::int64_t size) {
  return std::make_shared<const PatternSource>(
      size, std::vector<Field>{{"image", DType::u8, {4, 3}}, {"label", DType::i32, {}}});
}

// Which record each row of a batch must hold; -1 for padding.
std::vector<std::int64_t> expected_records(std::int64_t size, const LoaderOptions& options,
                                           std::uint64_t seed, std::int64_t batch) {
  const bool pad = options.last_batch == LastBatch::pad && size % options.batch_size != 0;
  const std::int64_t per_epoch = size / options.batch_size + (pad ? 1 : 0);
  const std::int64_t epoch = batch / per_epoch;
  const Shuffle shuffle(size, seed, static_cast<std::uint64_t>(epoch));
  std::vector<std::int64_t> records;
  for (std::int64_t row = 0; row < options.batch_size; ++row) {
    const std::int64_t place = batch % per_epoch * options.batch_size + row;
    records.push_back(place >= size                              ? -1
                      : options.order == RecordOrder::sequential ? place
                                                                 : shuffle.at(place));
  }
  return records;
}

// Compares every device's bytes of one field, element by element, with direct reads.
void expect_rows(const ShardedArray& array, std::size_t field,
                 const std::vector<std::int64_t>& records) {
  const std::size_t bytes = size_bytes(array.dtype());
  Shape record_shape;
  for (std::size_t dim = 1; dim < array.shape().size(); ++dim) {
    record_shape.push_back(array.shape()[dim]);
  }
  const Box record_box = Box::whole(record_shape);
  for (std::int64_t position = 0; position < array.sharding().mesh().size(); ++position) {
    const ConstBoxView shard = array.shard(position);
    const std::byte* data = shard.data;
    for (const Index& at : indices_of(shard.box)) {
      Index within = record_shape;
      for (std::size_t dim = 1; dim < at.size(); ++dim) within[dim - 1] = at[dim];
      const std::int64_t record = records[static_cast<std::size_t>(at[0])];
      const std::uint64_t value =
          record < 0 ? 0 : PatternSource::element(field, record, offset_in(record_box, within));
      ASSERT_EQ(std::memcmp(data, &value, bytes), 0)
          << "field " << field << " position " << position << " at " << to_string(at);
      data += bytes;
    }
  }
}

void expect_mask(const Batch& batch, const Sharding& first) {
  EXPECT_EQ(batch.mask.dtype(), DType::boolean);
  EXPECT_EQ(batch.mask.sharding().spec(), PartitionSpec{first.spec()[0]});
  for (std::int64_t position = 0; position < first.mesh().size(); ++position) {
    const ConstBoxView shard = batch.mask.shard(position);
    for (std::int64_t row = shard.box.begin(0); row < shard.box.end(0); ++row) {
      ASSERT_EQ(std::to_integer<int>(shard.data[row - shard.box.begin(0)]),
                row < batch.valid_rows ? 1 : 0)
          << row;
    }
  }
}

struct RandomCase {
  std::shared_ptr<const PatternSource> source;
  std::vector<FieldPlacement> placements;
  std::vector<std::size_t> fields;  // per placement
  LoaderOptions options;
};

// Any meshes and specs: tuple axes, replicas, record dims cut, fewer rows than tiles.
RandomCase random_case(RandomShardings& random) {
  RandomCase c;
  std::vector<Field> fields;
  const std::int64_t num_fields = random.draw(1, 3);
  for (std::int64_t i = 0; i < num_fields; ++i) {
    const DType dtypes[] = {DType::u8, DType::u16, DType::f32, DType::f64};
    fields.push_back({"field" + std::to_string(i), dtypes[random.draw(0, 3)],
                      random.shape(static_cast<std::size_t>(random.draw(0, 3)))});
  }
  for (std::int64_t i = random.draw(1, num_fields); i > 0; --i) {
    c.fields.push_back(static_cast<std::size_t>(random.draw(0, num_fields - 1)));
    const Field& field = fields[c.fields.back()];
    c.placements.push_back({field.name, random.sharding(field.shape.size() + 1)});
  }
  c.options.batch_size = random.draw(1, 12);
  c.options.epochs = random.draw(1, 3);
  c.options.order = random.draw(0, 3) == 0 ? RecordOrder::sequential : RecordOrder::shuffled;
  c.options.last_batch = random.draw(0, 1) == 0 ? LastBatch::drop : LastBatch::pad;
  c.options.prefetch = static_cast<int>(random.draw(1, 4));
  c.options.threads = static_cast<int>(random.draw(1, 4));
  c.source = std::make_shared<const PatternSource>(random.draw(c.options.batch_size, 40), fields);
  return c;
}

TEST(Loader, GivesTheSameRowsAsDirectReads) {
  RandomShardings random(21);
  Devices devices(48, {.threads = 1});
  for (int i = 0; i < 250; ++i) {
    const RandomCase c = random_case(random);
    const auto seed = static_cast<std::uint64_t>(random.draw(0, 1000));
    SCOPED_TRACE(c.placements[0].sharding.to_string() + ", batch " +
                 std::to_string(c.options.batch_size) + " of " + std::to_string(c.source->size()));
    Loader loader(devices, c.source, c.placements, c.options, {.seed = seed});
    const std::int64_t total = loader.batches_per_epoch() * c.options.epochs;
    for (std::int64_t b = 0; b < total; ++b) {
      EXPECT_EQ(loader.state().next_batch, b);
      const std::optional<Batch> batch = loader.next();
      ASSERT_TRUE(batch.has_value());
      EXPECT_EQ(batch->index, b);
      EXPECT_EQ(batch->epoch, b / loader.batches_per_epoch());
      const auto records = expected_records(c.source->size(), c.options, seed, b);
      EXPECT_EQ(batch->valid_rows,
                c.options.batch_size - std::count(records.begin(), records.end(), -1));
      ASSERT_EQ(batch->fields.size(), c.placements.size());
      for (std::size_t f = 0; f < c.fields.size(); ++f) {
        EXPECT_EQ(batch->fields[f].sharding(), c.placements[f].sharding);
        expect_rows(batch->fields[f], c.fields[f], records);
      }
      expect_mask(*batch, c.placements[0].sharding);
      ASSERT_FALSE(HasFailure());
    }
    EXPECT_FALSE(loader.next().has_value());
    EXPECT_FALSE(loader.next().has_value());
  }
}

TEST(Loader, RunsAsInTheHeader) {
  Devices devices(8, {.threads = 1});
  const Mesh mesh = Mesh::parse("data=4,model=2");
  const auto source = pattern(600);
  Loader loader(devices, source,
                {{"image", Sharding(mesh, PartitionSpec::parse("data,-,-"))},
                 {"label", Sharding(mesh, PartitionSpec::parse("data"))}},
                {.batch_size = 256, .epochs = 5}, {.seed = 1});
  std::int64_t batches = 0;
  while (auto batch = loader.next()) {
    EXPECT_EQ(batch->fields[0].shape(), Shape({256, 4, 3}));
    ++batches;
  }
  EXPECT_EQ(loader.batches_per_epoch(), 2);
  EXPECT_EQ(batches, 10);
  const LoaderStats stats = loader.stats();
  EXPECT_EQ(stats.batches, 10);
  EXPECT_EQ(stats.records, 10 * 256);
  // Image, label, mask and weights, on two devices each.
  EXPECT_EQ(stats.bytes_placed, 10u * 256 * (12 + 4 + 1 + 4) * 2);
  EXPECT_EQ(stats.threads, 1);
  EXPECT_GT(stats.rows_per_second, 0);
  EXPECT_LE(stats.mean_ready_batches, 2);
  EXPECT_FALSE(stats.stages.empty());
  EXPECT_GE(stats.consumer_waited_seconds, 0);
  EXPECT_GE(stats.readers_waited_seconds, 0);
}

TEST(Loader, ReadsEveryDistinctBoxOnce) {
  const struct {
    const char* name;
    const char *image, *label, *mesh;
  } cases[] = {{"rows cut", "data,-,-", "data", "data=4,model=2"},
               {"all replicated", "-,-,-", "-", "data=4,model=2"},
               {"records cut", "-,model,data", "-", "data=4,model=2"},
               {"all cut", "data,a+b,-", "data", "data=2,a=2,b=2"},
               {"rows uneven", "data,-,-", "data", "data=7"}};
  Devices devices(8, {.threads = 1});
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const auto source = pattern(50);
    source->fingerprint();
    const std::int64_t sampled = source->elements();
    {
      Loader loader(
          devices, source,
          {{"image", make_sharding(c.image, c.mesh)}, {"label", make_sharding(c.label, c.mesh)}},
          {.batch_size = 10, .epochs = 2, .threads = 2});
      while (loader.next()) {
      }
    }
    EXPECT_EQ(source->elements() - 2 * sampled, 2 * 50 * (12 + 1));
  }
}

TEST(Loader, DeliversEveryRecordOnceAnEpoch) {
  Devices devices(6, {.threads = 1});
  for (const LastBatch last : {LastBatch::drop, LastBatch::pad}) {
    const std::int64_t size = 103;
    std::vector<Field> fields{{"id", DType::u64, {}}};
    const auto source = std::make_shared<const PatternSource>(size, fields);
    Loader loader(devices, source, {{"id", make_sharding("data", "data=6")}},
                  {.batch_size = 10, .epochs = 3, .last_batch = last, .threads = 3}, {.seed = 5});
    std::vector<std::vector<std::uint64_t>> epochs(3);
    while (const auto batch = loader.next()) {
      const std::vector<std::byte> rows = batch->fields[0].to_host();
      const std::vector<std::byte> mask = batch->mask.to_host();
      for (std::size_t row = 0; row < 10; ++row) {
        std::uint64_t id = 0;
        std::memcpy(&id, rows.data() + 8 * row, 8);
        EXPECT_EQ(mask[row] == std::byte{1}, id != 0);
        if (mask[row] == std::byte{1}) epochs[static_cast<std::size_t>(batch->epoch)].push_back(id);
      }
    }
    std::vector<std::uint64_t> all;
    for (std::int64_t i = 0; i < size; ++i) all.push_back(PatternSource::element(0, i, 0));
    std::sort(all.begin(), all.end());
    EXPECT_NE(epochs[0], epochs[1]);
    for (std::vector<std::uint64_t>& epoch : epochs) {
      std::sort(epoch.begin(), epoch.end());
      EXPECT_EQ(std::adjacent_find(epoch.begin(), epoch.end()), epoch.end());
      EXPECT_TRUE(std::includes(all.begin(), all.end(), epoch.begin(), epoch.end()));
      EXPECT_EQ(epoch.size(), last == LastBatch::pad ? 103u : 100u);
    }
  }
}

using BatchBytes = std::vector<std::vector<std::byte>>;

BatchBytes to_host(const Batch& batch) {
  BatchBytes host;
  for (const ShardedArray& field : batch.fields) host.push_back(field.to_host());
  host.push_back(batch.mask.to_host());
  return host;
}

TEST(Loader, ResumesAnywhereOnAnyMesh) {
  Devices devices(8, {.threads = 1});
  const auto source = pattern(45);
  const LoaderOptions options{.batch_size = 10, .epochs = 3, .last_batch = LastBatch::pad};
  std::vector<BatchBytes> whole;
  std::vector<LoaderState> states;
  {
    Loader loader(devices, source,
                  {{"image", make_sharding("data,-,-", "data=4,model=2")},
                   {"label", make_sharding("data", "data=4,model=2")}},
                  options, {.seed = 3});
    states.push_back(loader.state());
    while (const auto batch = loader.next()) {
      whole.push_back(to_host(*batch));
      states.push_back(loader_state_from_json(to_json(loader.state())));
    }
  }
  ASSERT_EQ(whole.size(), 15u);
  const struct {
    const char *image, *label, *mesh;
    int prefetch, threads;
  } others[] = {{"data,model,-", "data", "data=2,model=3", 1, 1},
                {"-,-,x", "x", "x=8", 4, 2},
                {"a+b,-,-", "b", "a=3,b=2", 2, 4},
                {"-,-,-", "-", "", 3, 1}};
  for (std::size_t from = 0; from <= whole.size(); ++from) {
    const auto& other = others[from % 4];
    SCOPED_TRACE(from);
    LoaderOptions changed = options;
    changed.prefetch = other.prefetch;
    changed.threads = other.threads;
    Loader loader(devices, source,
                  {{"image", make_sharding(other.image, other.mesh)},
                   {"label", make_sharding(other.label, other.mesh)}},
                  changed, states[from]);
    EXPECT_EQ(loader.state(), states[from]);
    for (std::size_t b = from; b < whole.size(); ++b) {
      const auto batch = loader.next();
      ASSERT_TRUE(batch.has_value());
      EXPECT_EQ(batch->index, static_cast<std::int64_t>(b));
      EXPECT_EQ(to_host(*batch), whole[b]);
    }
    EXPECT_FALSE(loader.next().has_value());
    EXPECT_EQ(loader.state(), states.back());
  }
}

TEST(Loader, MasksWhatItPads) {
  Devices devices(4, {.threads = 1});
  Loader loader(devices, pattern(13), {{"label", make_sharding("data", "data=4")}},
                {.batch_size = 10, .order = RecordOrder::sequential, .last_batch = LastBatch::pad});
  EXPECT_EQ(loader.batches_per_epoch(), 2);
  EXPECT_EQ(loader.next()->valid_rows, 10);
  const auto batch = loader.next();
  EXPECT_EQ(batch->valid_rows, 3);
  std::vector<int> mask;
  for (const std::byte byte : batch->mask.to_host()) mask.push_back(std::to_integer<int>(byte));
  EXPECT_THAT(mask, ElementsAre(1, 1, 1, 0, 0, 0, 0, 0, 0, 0));
  expect_rows(batch->fields[0], 1, {10, 11, 12, -1, -1, -1, -1, -1, -1, -1});
  EXPECT_FALSE(loader.next().has_value());
}

TEST(Loader, RunsOnWhereTheEpochsAreWithoutEnd) {
  Devices devices(1, {.threads = 1});
  Loader loader(devices, pattern(4), {{"label", make_sharding("-", "")}},
                {.batch_size = 2, .epochs = INT64_MAX}, {.seed = 1, .next_batch = 1000001});
  EXPECT_EQ(loader.next()->epoch, 500000);
  EXPECT_EQ(loader.next()->index, 1000002);
}

TEST(Loader, RejectsWhatCannotBe) {
  Devices devices(4, {.threads = 1});
  const auto source = pattern(20);
  const std::vector<FieldPlacement> placements{{"label", make_sharding("data", "data=4")}};
  const std::vector<FieldPlacement> none;
  const struct {
    const char* name;
    std::shared_ptr<const Source> source;
    std::vector<FieldPlacement> placements;
    LoaderOptions options;
    LoaderState state;
    ErrorCode code;
    const char* message;
  } cases[] = {
      {"batch size",
       source,
       placements,
       {.batch_size = 0},
       {},
       ErrorCode::invalid_argument,
       "loader: batch_size is 0, needed is 1 or more"},
      {"negative batch size",
       source,
       placements,
       {.batch_size = -4},
       {},
       ErrorCode::invalid_argument,
       "batch_size is -4"},
      {"epochs",
       source,
       placements,
       {.epochs = 0},
       {},
       ErrorCode::invalid_argument,
       "epochs is 0, needed is 1 or more"},
      {"prefetch",
       source,
       placements,
       {.prefetch = 0},
       {},
       ErrorCode::invalid_argument,
       "prefetch is 0, needed is 1 or more"},
      {"threads",
       source,
       placements,
       {.threads = 0},
       {},
       ErrorCode::invalid_argument,
       "threads is 0, needed is 1 or more"},
      {"too many threads",
       source,
       placements,
       {.threads = 5000},
       {},
       ErrorCode::invalid_argument,
       "threads is 5000, needed is 1024 or fewer"},
      {"no source", nullptr, placements, {}, {}, ErrorCode::invalid_argument, "the source is null"},
      {"no field", source, none, {}, {}, ErrorCode::invalid_argument, "got no field to place"},
      {"larger than the source",
       source,
       placements,
       {.batch_size = 21},
       {},
       ErrorCode::invalid_argument,
       "a source of 20 records makes no batch of 21"},
      {"no records",
       pattern(0),
       placements,
       {.last_batch = LastBatch::pad},
       {},
       ErrorCode::invalid_argument,
       "a source of 0 records makes no batch of 1"},
      {"unknown field",
       source,
       {{"lable", make_sharding("data", "data=4")}},
       {},
       {},
       ErrorCode::no_such_name,
       "no field \"lable\"; the source has \"image\", \"label\""},
      {"rank too low",
       source,
       {{"image", make_sharding("data", "data=4")}},
       {},
       {},
       ErrorCode::invalid_argument,
       "field \"image\" of record shape [4, 3] is placed by \"data\" of rank 1, needed is rank 3"},
      {"rank too high",
       source,
       {{"label", make_sharding("data,-", "data=4")}},
       {},
       {},
       ErrorCode::invalid_argument,
       "is placed by \"data,-\" of rank 2, needed is rank 1"},
      {"unknown device",
       source,
       {{"label", make_sharding("data", "data=5")}},
       {},
       {},
       ErrorCode::not_found,
       "device 4"},
      {"a batch beyond memory",
       source,
       placements,
       {.batch_size = INT64_MAX, .last_batch = LastBatch::pad},
       {},
       ErrorCode::invalid_argument,
       "9223372036854775807"},
      {"negative state",
       source,
       placements,
       {},
       {.next_batch = -1},
       ErrorCode::invalid_argument,
       "the state stands at batch -1, needed is 0 to 20"},
      {"state beyond the end",
       source,
       placements,
       {},
       {.next_batch = 21},
       ErrorCode::invalid_argument,
       "the state stands at batch 21, needed is 0 to 20"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(
        message_of(c.code, [&] { Loader(devices, c.source, c.placements, c.options, c.state); }),
        HasSubstr(c.message));
  }
}

TEST(Loader, RefusesTheStateOfAnotherRun) {
  Devices devices(4, {.threads = 1});
  const std::vector<FieldPlacement> placements{{"label", make_sharding("data", "data=4")}};
  const LoaderOptions options{.batch_size = 4, .epochs = 2};
  const auto source = pattern(20);
  Loader loader(devices, source, placements, options, {.seed = 1});
  loader.next();
  const LoaderState state = loader.state();
  EXPECT_EQ(state.source, source->fingerprint());
  EXPECT_EQ(state.seed, 1u);
  EXPECT_EQ(state.next_batch, 1);

  LoaderOptions more = options, batch = options, order = options, last = options;
  more.epochs = 9;
  Loader(devices, source, placements, more, state);
  Loader(devices, pattern(20), {{"image", make_sharding("-,-,data", "data=2")}}, options, state);
  batch.batch_size = 5;
  order.order = RecordOrder::sequential;
  last.last_batch = LastBatch::pad;
  std::vector<std::string> messages;
  for (const LoaderOptions& other : {batch, order, last}) {
    messages.push_back(message_of(ErrorCode::invalid_argument,
                                  [&] { Loader(devices, source, placements, other, state); }));
  }
  messages.push_back(message_of(ErrorCode::invalid_argument,
                                [&] { Loader(devices, pattern(21), placements, options, state); }));
  EXPECT_THAT(messages,
              ElementsAre("loader: the state is of another run: batch_size is 5, the state "
                          "has 4",
                          "loader: the state is of another run: order is sequential, the "
                          "state has shuffled",
                          "loader: the state is of another run: last_batch is pad, the "
                          "state has drop",
                          "loader: the state is of another run: the source's data differ"));
}

TEST(Loader, IsLoopedOver) {
  const auto source =
      memory_source({"x", DType::f32, {2}}, 5, std::vector<float>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  const auto placements = cut_batch(*source, Mesh::parse("data=2"), "data");
  const LoaderOptions options{
      .batch_size = 2, .order = RecordOrder::sequential, .last_batch = LastBatch::pad};
  Devices devices(2);
  Loader loader(devices, source, placements, options);
  std::vector<std::int64_t> seen, rows;
  for (Batch& batch : loader) {
    seen.push_back(batch.index);
    rows.push_back(batch.valid_rows);
    EXPECT_EQ(batch.size(), 2);
    if (batch.index == 1) break;
  }
  for (const Batch& batch : loader) {  // goes on
    seen.push_back(batch.index);
    rows.push_back(batch.valid_rows);
  }
  for (const Batch& batch : loader) seen.push_back(batch.index);  // nothing is left
  EXPECT_THAT(seen, ElementsAre(0, 1, 2));
  EXPECT_THAT(rows, ElementsAre(2, 2, 1));
  HostLoader host(take(source, 4), cut_batch(*source, Mesh::parse("data=1"), "data"), options);
  std::vector<float> values;
  for (HostBatch& batch : host) {
    EXPECT_EQ(batch.size(), 2);
    const auto part = batch.field("x").as<float>();
    values.insert(values.end(), part.begin(), part.end());
  }
  EXPECT_THAT(values, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

}  // namespace
}  // namespace shardwise
