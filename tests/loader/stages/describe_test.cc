#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "loader/stages/stage_checks.h"
#include "shardwise/loader/source.h"
#include "shardwise/loader/stages/convert.h"
#include "shardwise/loader/stages/filter.h"
#include "shardwise/loader/stages/map.h"
#include "shardwise/loader/stages/pack.h"
#include "shardwise/loader/stages/region.h"
#include "shardwise/loader/stages/select.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::HasSubstr;

using SomeSource = std::shared_ptr<const Source>;

constexpr std::int64_t kAllSamples = std::numeric_limits<std::int64_t>::max();

SomeSource documents() {
  return std::make_shared<RaggedSource>(
      20, std::vector<Field>{{"text", DType::u16, {9}, true}, {"my label", DType::u8, {2, 3}}});
}

void fill_nothing(const Sample&, SampleRandom&, std::span<const FieldValue>,
                  std::span<FieldBuffer>) {}

TEST(Describe, SaysStagesAndParameters) {
  const SomeSource a = documents();
  const auto kept =
      filter(a, parse_filter("length(text)>=2", a->fields()), {.threads = 2, .cache = {}});
  const struct {
    SomeSource source;
    const char* text;
  } cases[] = {
      {a, "records"},
      {counted(3), "records"},
      {shuffle(a), "shuffle(records)"},
      {shuffle(a, 7), "shuffle(salt 7, records)"},
      {take(a, 2, 9), "take(2 to 9, records)"},
      {repeat(take(a, 2, 9), 3), "repeat(3 times, take(2 to 9, records))"},
      {kept, "filter(\"length ( text ) >= 2\", records)"},
      {pack(kept, {.field = "text", .window = 8}),
       "pack(text, window 8, documents 1024, filter(\"length ( text ) >= 2\", records))"},
      {pack(a, {.field = "text", .window = 8, .documents = 4, .eos = 0}),
       "pack(text, window 8, documents 4, eos 0, records)"},
      {map(a, {{"y", DType::u8, {}}}, fill_nothing,
           {.name = "a \"b\"", .inputs = {"my label"}, .keep = {"text"}}),
       "map(\"a \\\"b\\\"\", of \"my label\", keeps text, records)"},
      {map(a, {{"y", DType::u8, {}}}, fill_nothing, {.name = "n"}),
       "map(\"n\", of text \"my label\", records)"},
      {crop(a, "my label", {1, 2}, CropPosition::at({1, 0})),
       "crop(\"my label\", [1, 2] at [1, 0], records)"},
      {crop(a, "text", {4}, CropPosition::centre()), "crop(text, [4] centre, records)"},
      {crop(a, "text", {4}, CropPosition::random()),
       "crop(text, [4] random \"crop text\", records)"},
      {crop(a, "text", {4}, CropPosition::random("s")), "crop(text, [4] random \"s\", records)"},
      {flip(a, "my label", 1, 0.25),
       "flip(\"my label\", dim 1, probability 0.25 \"flip 1 my label\", records)"},
      {pad(a, "text", {1}, {2}, 3), "pad(text, [1] before, [2] after, value 3, records)"},
      {cast(a, "text", DType::f32), "cast(text, f32, records)"},
      {normalise(a, "my label", {1, 2, 3}, {0.5F, 1, 4}),
       "normalise(\"my label\", mean 1 2 3, deviation 0.5 1 4, records)"},
      {mix({shuffle(a), a}, {3, 1}, {{10, {1, 1}}, {20, {0, 1}}}),
       "mix(weights 3 1, from sample 10 1 1, from sample 20 0 1, shuffle(records), records)"},
      {zip({take(counted(9), 0, 3), numbers<std::uint8_t>({"y", DType::u8, {}}, {1, 2, 3})}),
       "zip(take(0 to 3, records), records)"},
      {zip({shuffle(a)}), "shuffle(records)"},
      {concat({shuffle(a), a, a}), "concat(shuffle(records), records)"},
  };
  for (const auto& c : cases) EXPECT_EQ(c.source->describe(kAllSamples), c.text);
}

// Files that were cut otherwise hold the same records.
TEST(Describe, SameRecordsInMoreFilesAreTheSame) {
  const auto whole = counted(9), parts = concat({counted(4), counted(3, 4), counted(2, 7)});
  EXPECT_EQ(whole->describe(0), parts->describe(0));
  EXPECT_EQ(whole->fingerprint(), parts->fingerprint());
}

/// Makes a source of a mix with these changes.
struct ChangedChain {
  std::string name;
  std::function<SomeSource(std::vector<MixChange>)> make;
};

ChangedChain random_chain_of_mix(RandomShardings& random) {
  const std::int64_t a = random.draw(1, 5), b = random.draw(1, 5), w = random.draw(1, 3);
  ChangedChain chain{"mix", [=](std::vector<MixChange> changes) {
                       return mix({counted(a), counted(b, 100)}, {w, 2}, std::move(changes));
                     }};
  for (std::int64_t i = random.draw(0, 3); i > 0; --i) {
    const auto before = chain.make;
    const std::int64_t size = before({})->size();
    const std::int64_t begin = random.draw(0, size - 1), end = random.draw(begin + 1, size);
    const std::int64_t times = random.draw(1, 3), more = random.draw(1, 4);
    const auto add = [&](const char* name, std::function<SomeSource(SomeSource)> stage) {
      chain.name += std::string(" ") + name;
      chain.make = [before, stage = std::move(stage)](std::vector<MixChange> changes) {
        return stage(before(std::move(changes)));
      };
    };
    switch (random.draw(0, 6)) {
      case 0:
        add("shuffle", [](auto source) { return shuffle(source, 1); });
        break;
      case 1:
        add("take", [=](auto source) { return take(source, begin, end); });
        break;
      case 2:
        add("repeat", [=](auto source) { return repeat(source, times); });
        break;
      case 3:
        add("mix", [=](auto source) { return mix({counted(more, 200), source}, {times, 1}); });
        break;
      case 4:
        add("concat", [=](auto source) { return concat({counted(more, 300), source, source}); });
        break;
      case 5:
        add("zip", [=](auto source) { return zip({source}); });
        break;
      default:
        add("cast", [](auto source) { return cast(source, "x", DType::i32); });
    }
  }
  return chain;
}

std::vector<std::int32_t> first_samples(const Source& source, std::int64_t count) {
  std::vector<std::int32_t> values;
  for (std::int64_t n = 0; n < count; ++n) {
    const Sample sample{n % source.size(), n / source.size(), 5};
    values.push_back(values_of<std::int32_t>(source, sample, 0)[0]);
  }
  return values;
}

// By trying it out: a change that shows in one of the samples before must not be left out.
TEST(Describe, LeavesOutNoChangeThatWasDelivered) {
  RandomShardings random(51);
  int shown = 0, hidden = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const ChangedChain chain = random_chain_of_mix(random);
    const std::vector<MixChange> change{{random.draw(1, 40), {0, random.draw(1, 2)}}};
    const SomeSource plain = chain.make({}), changed = chain.make(change);
    SCOPED_TRACE(std::to_string(trial) + ": " + chain.name);
    ASSERT_EQ(plain->fingerprint(), changed->fingerprint());
    const std::vector<std::int32_t> before = first_samples(*plain, 60),
                                    after = first_samples(*changed, 60);
    EXPECT_EQ(plain->describe(0), changed->describe(0)) << "nothing was delivered";
    EXPECT_NE(plain->describe(kAllSamples), changed->describe(kAllSamples));
    for (std::size_t samples = 0; samples <= before.size(); ++samples) {
      const auto count = static_cast<std::int64_t>(samples);
      const bool same = plain->describe(count) == changed->describe(count);
      if (!std::equal(before.begin(), before.begin() + count, after.begin())) {
        ASSERT_FALSE(same) << samples;
        ++shown;
      } else if (same && samples > 0) {
        ++hidden;
      }
    }
  }
  EXPECT_GT(shown, 1000);
  EXPECT_GT(hidden, 1000);
}

TEST(Describe, AMixSaysChangesBeforeTheSamplesAlone) {
  const auto mixed = mix({counted(3), counted(3)}, {1, 1}, {{10, {2, 1}}, {12, {1, 3}}});
  const std::string none = "mix(weights 1 1, records, records)";
  const std::string one = "mix(weights 1 1, from sample 10 2 1, records, records)";
  EXPECT_EQ(mixed->describe(0), none);
  EXPECT_EQ(mixed->describe(10), none);
  EXPECT_EQ(mixed->describe(11), one);
  EXPECT_EQ(mixed->describe(12), one);
  EXPECT_EQ(mixed->describe(13),
            "mix(weights 1 1, from sample 10 2 1, from sample 12 1 3, records, records)");
  // Sample 3 of the part is sample 6 + 2 + 3 of all.
  EXPECT_EQ(take(mixed, 2, 6)->describe(4 + 2), "take(2 to 6, " + none + ")");
  EXPECT_EQ(take(mixed, 2, 6)->describe(4 + 3), "take(2 to 6, " + one + ")");
  EXPECT_EQ(shuffle(mixed)->describe(6), "shuffle(" + none + ")");
  EXPECT_NE(shuffle(mixed)->describe(7), "shuffle(" + none + ")");
  // All packs are made of epoch 0, whatever was delivered of them.
  const auto first = mix({documents(), documents()}, {1, 1}, {{3, {2, 1}}, {100, {1, 2}}});
  EXPECT_EQ(pack(first, {.field = "text", .window = 8})->describe(0),
            "pack(text, window 8, documents 1024, mix(weights 1 1, from sample 3 2 1, records, "
            "records))");
}

TEST(StagesOfMix, AreOfOneFingerprintWhateverTheWeights) {
  const auto of = [](std::vector<std::int64_t> weights, std::vector<MixChange> changes) {
    return mix({counted(5), counted(6)}, std::move(weights), std::move(changes));
  };
  const SomeSource plain = of({1, 1}, {}), other = of({1, 2}, {}),
                   later = of({1, 1}, {{1, {1, 2}}});
  EXPECT_EQ(plain->fingerprint(), other->fingerprint());
  EXPECT_EQ(plain->fingerprint(), later->fingerprint());
  EXPECT_EQ(concat({plain, counted(3)})->fingerprint(), concat({later, counted(3)})->fingerprint());
  EXPECT_NE(concat({plain, counted(3)})->fingerprint(), concat({later, counted(4)})->fingerprint());
  EXPECT_NE(plain->fingerprint(), mix({counted(5), counted(7)}, {1, 1})->fingerprint());
}

/// Records the hints and reads that it gets.
class HeardSource final : public Source {
 public:
  explicit HeardSource(std::string name) : field_{std::move(name), DType::u8, {4}, true} {}
  std::int64_t size() const override { return 12; }
  std::span<const Field> fields() const override { return {&field_, 1}; }
  std::int64_t length(const Sample& sample, std::size_t) const override {
    return 1 + sample.record % 4;
  }
  void read(const Sample& sample, std::span<const FieldBox> boxes) const override {
    const std::lock_guard lock(mutex_);
    read_.emplace_back(sample.record, sample.epoch, sample.seed);
    for (const FieldBox& box : boxes) {
      for (std::int64_t at = box.to.box.begin(0); at < box.to.box.end(0); ++at) {
        const bool inside = at < length(sample, 0);
        box.to.data[at - box.to.box.begin(0)] =
            static_cast<std::byte>(inside ? sample.record * 4 + at : 0);
      }
    }
  }
  void will_read(const Sample& sample) const override {
    const std::lock_guard lock(mutex_);
    told_.emplace_back(sample.record, sample.epoch, sample.seed);
  }

  using Samples = std::vector<std::tuple<std::int64_t, std::int64_t, std::uint64_t>>;
  Samples take_read() const { return std::exchange(read_, {}); }
  Samples take_told() const { return std::exchange(told_, {}); }

 private:
  Field field_;
  mutable std::mutex mutex_;
  mutable Samples read_, told_;
};

TEST(Hints, ReachTheSourceAsTheReadsDo) {
  const auto heard = std::make_shared<const HeardSource>("x");
  const SomeSource a = heard;
  const auto twice = map(a, {{"x", DType::u8, {4}}},
                         [](const Sample&, SampleRandom&, auto in, auto out) {
                           std::copy(in[0].data.begin(), in[0].data.end(), out[0].data.begin());
                         },
                         {.name = "copy"});
  const SomeSource packs = pack(a, {.field = "x", .window = 6, .documents = 5});
  const std::pair<const char*, SomeSource> stages[] = {
      {"shuffle", shuffle(a, 3)},
      {"take", take(a, 3, 9)},
      {"repeat", repeat(a, 2)},
      {"filter", filter(a, parse_filter("length(x)>1", a->fields()))},
      {"mix", mix({shuffle(a), take(a, 0, 5)}, {2, 1}, {{4, {1, 1}}})},
      {"map", twice},
      {"crop", crop(a, "x", {2}, CropPosition::random())},
      {"pad", pad(a, "x", {1}, {1})},
      {"cast", cast(a, "x", DType::f32)},
      {"normalise", normalise(a, "x", {1}, {2})},
      {"concat", concat({take(a, 0, 4), shuffle(a)})},
      {"pack", packs},
      {"all",
       shuffle(cast(concat({repeat(packs, 2), mix({packs, packs}, {1, 1})}), "x", DType::i16))},
  };
  for (const auto& [name, stage] : stages) {
    SCOPED_TRACE(name);
    for (std::int64_t record = 0; record < stage->size(); ++record) {
      const Sample sample{record, 2, 9};
      whole_of(*stage, sample, 0);  // of packs: the plan is at hand now
      heard->take_read();
      heard->take_told();
      stage->will_read(sample);
      EXPECT_TRUE(heard->take_read().empty()) << "a hint reads nothing";
      whole_of(*stage, sample, 0);
      const HeardSource::Samples read = heard->take_read();
      EXPECT_FALSE(read.empty());
      EXPECT_EQ(heard->take_told(), read);
    }
  }
}

TEST(Hints, OfPacksWithoutAPlanDoNothing) {
  const auto heard = std::make_shared<const HeardSource>("x");
  const auto packs = pack(heard, {.field = "x", .window = 6});
  packs->will_read({0, 0, 0});
  EXPECT_TRUE(heard->take_told().empty());
  EXPECT_TRUE(heard->take_read().empty());
}

TEST(ChangesWithEpoch, IsSeenThroughAllStages) {
  const SomeSource still = counted(8), moving = shuffle(counted(8)),
                   other = numbers<std::uint8_t>({"y", DType::u8, {}}, {1, 2, 3, 4, 5, 6, 7, 8});
  const auto copy = [](const Sample&, SampleRandom&, auto in, auto out) {
    std::copy(in[0].data.begin(), in[0].data.end(), out[0].data.begin());
  };
  const auto stages_over = [&](const SomeSource& a) {
    return std::vector<SomeSource>{a,
                                   take(a, 0, 8),
                                   repeat(a, 2),
                                   zip({other, a}),
                                   zip({a}),
                                   concat({counted(3), a}),
                                   cast(a, "x", DType::i32),
                                   map(a, {{"x", DType::i32, {}}}, copy, {.name = "copy"}),
                                   pad(zip({take(concat({a, a}), 0, 8), other}), "x", {}, {})};
  };
  const RecordPredicate all{.name = "all", .fields = {"x"}, .keep = [](auto) { return true; }};
  for (const SomeSource& source : stages_over(still)) {
    EXPECT_FALSE(source->changes_with_epoch());
    EXPECT_EQ(filter(source, all)->size(), source->size());
  }
  for (const SomeSource& mover : {moving, mix({counted(4), counted(4)}, {1, 1})}) {
    for (const SomeSource& source : stages_over(mover)) {
      EXPECT_TRUE(source->changes_with_epoch());
      EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { filter(source, all); }),
                  HasSubstr("order of the source of \"all\" changes with the epoch"));
    }
  }
  const SomeSource packs =
      pack(shuffle(numbers<std::int32_t>({"x", DType::i32, {2}}, {1, 2, 3, 4, 5, 6})),
           {.field = "x", .window = 2});
  EXPECT_FALSE(packs->changes_with_epoch()) << "packs are those of epoch 0";
}

}  // namespace
}  // namespace shardwise
