#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "loader/engine/joined_hosts.h"
#include "loader/engine/trial_source.h"
#include "loader/stages/stage_checks.h"
#include "shardwise/loader/source.h"
#include "shardwise/loader/stages/convert.h"
#include "shardwise/loader/stages/filter.h"
#include "shardwise/loader/stages/map.h"
#include "shardwise/loader/stages/pack.h"
#include "shardwise/loader/stages/region.h"
#include "shardwise/loader/stages/select.h"
#include "testing/errors.h"
#include "testing/make_sharding.h"

namespace shardwise {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint64_t kChainSeed = 77;
constexpr std::int64_t kChainRecords = 30;

/// New weights of both mixes from some sample on.
struct ChainChange {
  std::int64_t first_sample;  // of the run's source: epoch * kChainRecords + record
  std::vector<std::int64_t> text, images;
};

std::shared_ptr<const Source> kept_of(const std::shared_ptr<const Source>& source,
                                      const char* text) {
  return filter(source, parse_filter(text, source->fields()));
}

// Documents of two kinds in packs, mixed.
std::shared_ptr<const Source> text_chain(const std::vector<MixChange>& changes) {
  const std::shared_ptr<const Source> documents =
      concat({std::make_shared<TrialSource>(50), std::make_shared<TrialSource>(31)});
  const auto packs = [&](const char* keep, std::uint64_t salt) {
    return shuffle(
        pack(kept_of(documents, keep), {.field = "text", .window = 16, .documents = 16, .eos = 3}),
        salt);
  };
  return cast(mix({packs("length(text)>=2 && label>=0", 1), packs("label<0", 2)}, {3, 1}, changes),
              "text", DType::i32);
}

void noisy_caption(const Sample&, SampleRandom& random, std::span<const FieldValue> in,
                   std::span<FieldBuffer> out) {
  for (std::size_t i = 0; i < in[0].data.size(); ++i) {
    out[0].data[i] = in[0].data[i] ^ static_cast<std::byte>(random.below(256));
  }
  out[0].length = in[0].length;
}

// Images of two kinds, augmented, each with a caption of its own length.
std::shared_ptr<const Source> image_chain(const std::vector<MixChange>& changes) {
  const auto images = std::make_shared<TrialSource>(40);
  auto source = mix({shuffle(kept_of(images, "label>=0"), 5), repeat(take(images, 3, 20), 2)},
                    {1, 2}, changes);
  source = map(source, {{"caption", DType::u16, {12}, true}}, noisy_caption,
               {.name = "noise", .inputs = {"text"}, .keep = {"image", "label"}});
  source = flip(crop(source, "image", {4, 3}, CropPosition::random()), "image", 1, 0.5);
  return normalise(pad(source, "image", {0, 0}, {0, 1}, 9), "image", {100}, {7});
}

// Both side by side: packs, images, captions.
std::shared_ptr<const Source> whole_chain(const std::vector<ChainChange>& changes) {
  const auto part = [&](auto make, auto weights) {
    const std::int64_t size = make({})->size();
    std::vector<MixChange> own;
    own.reserve(changes.size());
    for (const ChainChange& change : changes) {
      own.push_back(
          {change.first_sample / kChainRecords * size + change.first_sample % kChainRecords,
           change.*weights});
    }
    return take(make(own), 0, kChainRecords);
  };
  return zip({part(text_chain, &ChainChange::text), part(image_chain, &ChainChange::images)});
}

struct ChainLayout {
  const char *mesh, *packs, *image, *caption, *rows;
};

constexpr ChainLayout kChainLayouts[] = {{"x=1", "-,-", "-,-,-", "-,-", "-"},
                                         {"x=2", "x,-", "-,x,-", "-,x", "x"},
                                         {"x=4", "-,x", "x,-,-", "x,-", "-"},
                                         {"x=4,y=2", "x,y", "y,x,-", "x+y,-", "y"},
                                         {"x=3,y=2", "y,x", "x,-,y", "y,x", "x+y"}};

std::vector<FieldPlacement> placements_of(const ChainLayout& layout) {
  const auto on = [&](const char* spec) { return make_sharding(spec, layout.mesh); };
  return {{"text", on(layout.packs)},
          {"text_segments", on(layout.packs)},
          {"text_positions", on(layout.packs)},
          {"image", on(layout.image)},
          {"label", on(layout.rows)},
          {.field = "caption", .sharding = on(layout.caption), .buckets = {6, 12}},
          {"caption.length", on(layout.rows)}};
}

// Every row of every batch, read from the source alone. No loader.
std::vector<WholeBatch> read_run(const Source& source, const LoaderOptions& options) {
  std::vector<WholeBatch> run;
  const std::int64_t size = options.batch_size;
  const std::size_t caption = source.field_index("caption");
  std::vector<Sample> samples;
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    for (std::int64_t record = 0; record < source.size(); ++record) {
      samples.push_back({record, epoch, kChainSeed});
    }
    const std::int64_t over = std::ssize(samples) % size;
    if (options.last_batch == LastBatch::drop) {
      samples.resize(samples.size() - static_cast<std::size_t>(over));
    } else if (over != 0 && (options.last_batch == LastBatch::pad || epoch + 1 == options.epochs)) {
      samples.resize(samples.size() + static_cast<std::size_t>(size - over), {-1, epoch, 0});
    }
  }
  const char* const fields[] = {"text",  "text_segments", "text_positions",
                                "image", "label",         "caption"};
  for (std::size_t first = 0; first < samples.size(); first += static_cast<std::size_t>(size)) {
    const std::span<const Sample> rows(&samples[first], static_cast<std::size_t>(size));
    WholeBatch batch{std::ssize(run), rows[0].epoch, 0, {}, {}};
    std::int64_t longest = 0;
    std::vector<std::int32_t> lengths;
    for (const Sample& row : rows) {
      const bool is_real = row.record >= 0;
      batch.valid_rows += is_real ? 1 : 0;
      const std::int64_t length = is_real ? source.length(row, caption) : 0;
      lengths.push_back(static_cast<std::int32_t>(length));
      longest = std::max(longest, length);
    }
    const auto add = [&](const Shape& record, std::size_t element_bytes, auto&& write) {
      Shape shape{size};
      for (const std::int64_t extent : record) shape.push_back(extent);
      batch.shapes.push_back(shape);
      const std::size_t row_bytes = num_bytes(record, element_bytes);
      std::vector<std::byte>& data = batch.arrays.emplace_back(row_bytes * as_size(size));
      for (std::size_t row = 0; row < rows.size(); ++row) {
        if (rows[row].record >= 0) write(row, data.data() + row * row_bytes);
      }
    };
    for (const char* name : fields) {
      const std::size_t field = source.field_index(name);
      Shape record = source.fields()[field].shape;
      if (field == caption) record[0] = longest <= 6 ? 6 : 12;
      add(record, size_bytes(source.fields()[field].dtype), [&](std::size_t row, std::byte* to) {
        const std::vector<std::byte> value = box_of(source, rows[row], field, Box::whole(record));
        std::copy(value.begin(), value.end(), to);
      });
    }
    add({}, 4, [&](std::size_t row, std::byte* to) { std::memcpy(to, &lengths[row], 4); });
    add({}, 1, [](std::size_t, std::byte* to) { *to = std::byte{1}; });
    const float weight = 1.0F / static_cast<float>(batch.valid_rows);
    add({}, 4, [&](std::size_t, std::byte* to) { std::memcpy(to, &weight, 4); });
    run.push_back(std::move(batch));
  }
  return run;
}

/// One run in pieces, each with other meshes, hosts, threads and depths, some with a change more.
class PiecewiseRun {
 public:
  PiecewiseRun(RandomShardings& random, const LoaderOptions& options)
      : random_(random), options_(options) {}

  void go() {
    while (!is_over_) piece();
  }
  const std::vector<WholeBatch>& batches() const { return batches_; }
  const std::vector<ChainChange>& changes() const { return changes_; }
  const LoaderState& state() const { return state_; }
  int pieces() const { return pieces_; }

 private:
  void piece() {
    ++pieces_;
    const ChainLayout& layout = kChainLayouts[random_.draw(0, std::ssize(kChainLayouts) - 1)];
    LoaderOptions options = options_;
    options.threads = static_cast<int>(random_.draw(1, 8));
    options.prefetch = static_cast<int>(random_.draw(1, 5));
    JoinedHosts hosts(whole_chain(changes_), placements_of(layout), options, state_,
                      random_.draw(1, 4));
    for (std::int64_t i = random_.draw(0, 5); i > 0 && !is_over_; --i) {
      std::optional<WholeBatch> batch = hosts.next();
      is_over_ = !batch;
      if (batch) batches_.push_back(std::move(*batch));
    }
    state_ = hosts.state();
    if (random_.draw(0, 1) == 0) append_change();
  }

  // After all delivered samples, perhaps directly after them.
  void append_change() {
    std::int64_t first = samples_delivered() + random_.draw(0, 20);
    if (!changes_.empty()) first = std::max(first, changes_.back().first_sample + 1);
    // Within an epoch's records, as one that is between two would be for the mixes.
    changes_.push_back({std::max<std::int64_t>(first, 1),
                        {random_.draw(1, 4), random_.draw(0, 3)},
                        {random_.draw(0, 3), random_.draw(1, 4)}});
  }

  // In numbers of the source, which has records that LastBatch::drop passes over.
  std::int64_t samples_delivered() const {
    std::int64_t valid = 0;
    for (const WholeBatch& batch : batches_) valid += batch.valid_rows;
    if (options_.last_batch != LastBatch::drop) return valid;
    const std::int64_t each = kChainRecords / options_.batch_size * options_.batch_size;
    return valid / each * kChainRecords + valid % each;
  }

  RandomShardings& random_;
  LoaderOptions options_;
  std::vector<WholeBatch> batches_;
  std::vector<ChainChange> changes_;
  LoaderState state_{.seed = kChainSeed};
  bool is_over_ = false;
  int pieces_ = 0;
};

TEST(WholeChain, GivesTheSameBatchesOnAnyMeshHowEverItIsInterruptedAndChanged) {
  RandomShardings random(61);
  int pieces = 0;
  std::size_t changes = 0;
  for (int trial = 0; trial < 24; ++trial) {
    const LastBatch lasts[] = {LastBatch::drop, LastBatch::pad, LastBatch::wrap};
    const LoaderOptions options{.batch_size = random.draw(1, 9),
                                .epochs = 2,
                                .order = RecordOrder::sequential,
                                .last_batch = lasts[trial % 3]};
    SCOPED_TRACE("trial " + std::to_string(trial) + ", batch " +
                 std::to_string(options.batch_size) + ", " + std::string(name(options.last_batch)));
    PiecewiseRun run(random, options);
    run.go();
    pieces += run.pieces();
    changes += run.changes().size();
    // As if all changes had been known from the start.
    const std::shared_ptr<const Source> source = whole_chain(run.changes());
    const std::vector<WholeBatch> expected = read_run(*source, options);
    ASSERT_EQ(run.batches().size(), expected.size());
    for (std::size_t b = 0; b < expected.size(); ++b) {
      ASSERT_EQ(run.batches()[b].shapes, expected[b].shapes) << "batch " << b;
      ASSERT_TRUE(run.batches()[b] == expected[b]) << "batch " << b;
    }
    HostLoader straight(source, placements_of(kChainLayouts[0]), options, {.seed = kChainSeed});
    while (straight.next()) {
    }
    EXPECT_EQ(straight.state().digest, run.state().digest);
    EXPECT_EQ(straight.state().source, run.state().source);
    // It cannot be resumed with other changes.
    if (run.changes().empty()) continue;
    const ChainChange& change = run.changes()[0];
    if (change.first_sample > kChainRecords) continue;
    const std::string message = message_of(ErrorCode::invalid_argument, [&] {
      HostLoader(whole_chain({}), placements_of(kChainLayouts[0]), options, run.state());
    });
    EXPECT_THAT(message, HasSubstr("the state is of another run: the stages are zip(take(0 to 30, "
                                   "cast(text, i32, mix(weights 3 1, shuffle("));
    EXPECT_THAT(message, Not(HasSubstr("data")));
  }
  EXPECT_GT(pieces, 60);
  EXPECT_GT(changes, 20u);
}

TEST(ResumedStages, AreComparedApartFromTheData) {
  const auto source = [](std::int64_t records) { return std::make_shared<TrialSource>(records); };
  const std::vector<FieldPlacement> placements{{"label", make_sharding("-", "x=1")}};
  const LoaderOptions options{.batch_size = 5, .epochs = 9, .order = RecordOrder::sequential};
  const auto of = [&](std::vector<MixChange> changes, std::int64_t records = 20) {
    return shuffle(crop(mix({source(records), source(7)}, {2, 1}, std::move(changes)), "image",
                        {3, 3}, CropPosition::centre()),
                   4);
  };
  const auto mixed = [&](std::vector<MixChange> changes) {
    return mix({source(20), source(7)}, {2, 1}, std::move(changes));
  };
  const auto resumed = [&](const std::shared_ptr<const Source>& run, const LoaderState& state) {
    return HostLoader(run, placements, options, state).state();
  };
  const auto refused = [&](const std::shared_ptr<const Source>& run, const LoaderState& state) {
    return message_of(ErrorCode::invalid_argument, [&] { resumed(run, state); });
  };
  const LoaderState start = resumed(of({}), {});
  EXPECT_EQ(resumed(of({{1, {1, 1}}}), start), start) << "nothing was delivered";
  EXPECT_EQ(refused(of({}, 19), start),
            "loader: the state is of another run: the source's data differ");
  EXPECT_EQ(
      refused(take(of({}), 0, 29), start),
      "loader: the state is of another run: the stages are take(0 to 29, shuffle(salt 4, "
      "crop(image, [3, 3] centre, mix(weights 2 1, records, records)))), the state has others");

  HostLoader loader(mixed({{12, {1, 1}}}), placements, options);
  std::vector<LoaderState> states{loader.state()};
  for (int batch = 0; batch < 4; ++batch) {
    loader.next();
    states.push_back(loader.state());
  }
  // Delivered: 0, 5, 10, 15, 20 samples.
  for (const int batch : {0, 1, 2}) {
    EXPECT_EQ(resumed(mixed({}), states[batch]), states[batch]);
    EXPECT_EQ(resumed(mixed({{12, {5, 1}}, {14, {1, 1}}}), states[batch]), states[batch]);
  }
  for (const int batch : {3, 4}) {
    EXPECT_EQ(resumed(mixed({{12, {1, 1}}, {20, {3, 1}}}), states[batch]), states[batch]);
    EXPECT_EQ(refused(mixed({{13, {1, 1}}}), states[batch]),
              "loader: the state is of another run: the stages are mix(weights 2 1, from sample 13 "
              "1 1, records, records), the state has others");
    refused(mixed({{12, {1, 2}}}), states[batch]);
  }
  refused(mixed({{12, {1, 1}}, {19, {3, 1}}}), states[4]);
  // Each epoch drops 2 of 30: after 5 batches of 7 stands number 7 of epoch 1.
  LoaderOptions dropping = options;
  dropping.batch_size = 7;
  HostLoader dropped(mixed({}), placements, dropping);
  for (int batch = 0; batch < 5; ++batch) dropped.next();
  const auto dropped_resumed = [&](std::int64_t first) {
    HostLoader(mixed({{first, {1, 1}}}), placements, dropping, dropped.state());
  };
  dropped_resumed(37);
  message_of(ErrorCode::invalid_argument, [&] { dropped_resumed(36); });
  // In random order any record of the epoch may have been delivered.
  LoaderOptions random_order = options;
  random_order.order = RecordOrder::shuffled;
  HostLoader random(mixed({}), placements, random_order);
  random.next();
  const std::int64_t epoch = mixed({})->size();
  const auto random_resumed = [&](std::int64_t first) {
    HostLoader(mixed({{first, {1, 1}}}), placements, random_order, random.state());
  };
  random_resumed(epoch);
  message_of(ErrorCode::invalid_argument, [&] { random_resumed(epoch - 1); });
}

}  // namespace
}  // namespace shardwise
