#include "shardwise/loader/stages/select.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "loader/stages/stage_checks.h"
#include "shardwise/loader/detail/order/shuffle.h"
#include "shardwise/loader/source.h"
#include "shardwise/loader/stages/pack.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ShuffleStage, GivesTheOrderOfTheCipher) {
  const auto source = shuffle(counted(50), 6);
  std::set<std::vector<std::int32_t>> orders;
  for (const std::int64_t epoch : {0, 1, 2}) {
    for (const std::uint64_t seed : {3, 4}) {
      const Shuffle order(50, seed ^ 6, static_cast<std::uint64_t>(epoch));
      const std::vector<std::int32_t> values = epoch_of(*source, epoch, seed);
      for (std::int64_t i = 0; i < 50; ++i) {
        EXPECT_EQ(values[static_cast<std::size_t>(i)], order.at(i));
      }
      orders.insert(values);
    }
  }
  EXPECT_EQ(orders.size(), 6u);
  EXPECT_NE(epoch_of(*shuffle(counted(50)), 0), epoch_of(*source, 0));
  EXPECT_EQ(shuffle(take(counted(5), 2, 2))->size(), 0);
}

TEST(TakeStage, IsARangeOfRecords) {
  EXPECT_THAT(epoch_of(*take(counted(10), 3, 6), 7), ElementsAre(3, 4, 5));
  EXPECT_EQ(take(counted(10), 0, 10)->size(), 10);
  EXPECT_EQ(take(counted(10), 10, 10)->size(), 0);
  const struct { std::int64_t begin, end; } cases[] = {{-1, 2}, {3, 2}, {0, 11}, {11, 11}};
  for (const auto& c : cases) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { take(counted(10), c.begin, c.end); }),
                HasSubstr("needed is 0 <= begin <= end <= 10"));
  }
}

TEST(RepeatStage, CountsEachTimeAsAnEpoch) {
  EXPECT_THAT(epoch_of(*repeat(counted(2), 3), 0), ElementsAre(0, 1, 0, 1, 0, 1));
  const auto inner = shuffle(counted(20));
  const auto thrice = repeat(inner, 3);
  std::vector<std::int32_t> expected;
  for (const std::int64_t epoch : {6, 7, 8}) {
    const std::vector<std::int32_t> one = epoch_of(*inner, epoch, 1);
    expected.insert(expected.end(), one.begin(), one.end());
  }
  EXPECT_EQ(epoch_of(*thrice, 2, 1), expected);
  EXPECT_EQ(repeat(take(counted(5), 1, 1), 4)->size(), 0);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { repeat(counted(2), 0); }),
              HasSubstr("times is 0, needed is 1"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [] { repeat(counted(3), std::numeric_limits<std::int64_t>::max()); }),
              HasSubstr("the size overflows"));
  EXPECT_THAT(
      message_of(
          ErrorCode::invalid_argument,
          [&] {
            values_of<std::int32_t>(*thrice, {0, std::numeric_limits<std::int64_t>::max(), 0}, 0);
          }),
      HasSubstr("the epoch overflows"));
}

TEST(SelectStages, RefuseANullSource) {
  for (const auto& make : std::vector<std::function<void()>>{
           [] { shuffle(nullptr); }, [] { take(nullptr, 0, 0); }, [] { repeat(nullptr, 1); }}) {
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, make), HasSubstr("the source is null"));
  }
}

TEST(MixStage, DrawsByWeightAndRepeatsTheSmaller) {
  // 10 of weight 3: 4 periods; 3 of weight 1: 3 periods. So 4 periods of 4.
  const auto source = mix({counted(10), counted(3, 100)}, {3, 1});
  ASSERT_EQ(source->size(), 16);
  EXPECT_THAT(epoch_of(*source, 0),
              ElementsAre(0, 1, 100, 2, 3, 4, 101, 5, 6, 7, 102, 8, 9, 0, 100, 1));
  EXPECT_THAT(epoch_of(*source, 1),
              ElementsAre(2, 3, 101, 4, 5, 6, 102, 7, 8, 9, 100, 0, 1, 2, 101, 3));
}

// Each source, by itself, is delivered as if it were read epoch after epoch.
TEST(MixStage, EachSourceComesInItsOwnOrderExactlyByWeight) {
  RandomShardings random(3);
  for (int trial = 0; trial < 40; ++trial) {
    const auto sources = static_cast<std::size_t>(random.draw(1, 4));
    std::vector<std::shared_ptr<const Source>> inner;
    std::vector<std::int64_t> weights, sizes;
    std::int64_t sum = 0, periods = 0;
    for (std::size_t s = 0; s < sources; ++s) {
      sizes.push_back(random.draw(1, 40));
      weights.push_back(random.draw(s == 0 ? 1 : 0, 5));
      inner.push_back(shuffle(counted(sizes.back(), static_cast<std::int32_t>(s) * 1000), s));
      sum += weights.back();
      if (weights.back() > 0) {
        periods = std::max(periods, (sizes.back() + weights.back() - 1) / weights.back());
      }
    }
    const auto mixed = mix(inner, weights);
    ASSERT_EQ(mixed->size(), periods * sum);
    std::vector<std::vector<std::int32_t>> drawn(sources);
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      std::vector<std::set<std::int32_t>> seen(sources);
      for (const std::int32_t value : epoch_of(*mixed, epoch, 9)) {
        drawn[static_cast<std::size_t>(value / 1000)].push_back(value);
        seen[static_cast<std::size_t>(value / 1000)].insert(value);
      }
      for (std::size_t s = 0; s < sources; ++s) {
        EXPECT_EQ(static_cast<std::int64_t>(drawn[s].size()), (epoch + 1) * periods * weights[s]);
        // Over an epoch border of its own, a source's shuffles may repeat one; in the first epoch
        // all come.
        if (weights[s] > 0 && epoch == 0) {
          EXPECT_EQ(static_cast<std::int64_t>(seen[s].size()), sizes[s]);
        }
      }
    }
    for (std::size_t s = 0; s < sources; ++s) {
      for (std::size_t at = 0; at < drawn[s].size(); at += as_size(sizes[s])) {
        const std::vector<std::int32_t> own =
            epoch_of(*inner[s], static_cast<std::int64_t>(at) / sizes[s], 9);
        const std::size_t count = std::min(own.size(), drawn[s].size() - at);
        EXPECT_TRUE(std::equal(own.begin(), own.begin() + static_cast<std::ptrdiff_t>(count),
                               drawn[s].begin() + static_cast<std::ptrdiff_t>(at)));
      }
    }
  }
}

TEST(MixStage, WeightsChangeOverTheRun) {
  const auto source = mix({counted(4), counted(4, 100)}, {1, 1}, {{6, {1, 0}}, {12, {0, 1}}});
  ASSERT_EQ(source->size(), 8);
  EXPECT_THAT(epoch_of(*source, 0), ElementsAre(0, 100, 1, 101, 2, 102, 3, 0));
  EXPECT_THAT(epoch_of(*source, 1), ElementsAre(1, 2, 3, 0, 103, 100, 101, 102));
  EXPECT_THAT(epoch_of(*source, 2), ElementsAre(103, 100, 101, 102, 103, 100, 101, 102));
}

// Documents of two sources: each has a longest of its own.
TEST(MixStage, FillsWhatIsLongerThanASourcesLongest) {
  const auto texts = [](std::int64_t size, std::int64_t most) {
    return std::make_shared<RaggedSource>(
        size, std::vector<Field>{{"n", DType::i32, {2}}, {"t", DType::u16, {most, 3}, true}});
  };
  const std::shared_ptr<const Source> inner[] = {texts(20, 4), texts(30, 9), texts(5, 0)};
  const auto mixed = mix({inner[0], inner[1], inner[2]}, {1, 2, 1});
  ASSERT_EQ(mixed->fields()[1], (Field{"t", DType::u16, {9, 3}, true}));
  const MixOrder order({1, 2, 1});
  RandomShardings random(5);
  for (std::int64_t record = 0; record < mixed->size(); ++record) {
    expect_boxes_of_whole(*mixed, {record, 0, 0}, 6, random);
    const MixOrder::Draw draw = order.at(record);
    const Source& source = *inner[draw.source];
    const Sample own{draw.count % source.size(), draw.count / source.size(), 0};
    EXPECT_EQ(mixed->length({record, 0, 0}, 1), source.length(own, 1));
    EXPECT_EQ(whole_of(*mixed, {record, 0, 0}, 0), whole_of(source, own, 0));
    std::vector<std::byte> expected = whole_of(source, own, 1);
    expected.resize(2 * 9 * 3);
    EXPECT_EQ(whole_of(*mixed, {record, 0, 0}, 1), expected);
  }
}

TEST(MixStage, DocumentsOfDifferentLongestArePacked) {
  // The tokens of document d of `most` are 100 * most + d, as many as (5 * d) % (most + 1).
  const auto documents = [](std::int64_t size, std::int64_t most) {
    const auto length = [most](const Sample& sample, std::size_t) {
      return 5 * sample.record % (most + 1);
    };
    return callback_source(
        {{"t", DType::i32, {most}, true}}, size,
        [=](const Sample& sample, std::span<std::byte* const> record) {
          const auto token = static_cast<std::int32_t>(100 * most + sample.record);
          const std::vector<std::int32_t> tokens(as_size(length(sample, 0)), token);
          if (!tokens.empty()) std::memcpy(record[0], tokens.data(), 4 * tokens.size());
        },
        length);
  };
  const auto packs = pack(mix({documents(12, 7), documents(24, 11)}, {1, 2}),
                          {.field = "t", .window = 10, .documents = 9});
  std::map<std::int32_t, std::int64_t> found, expected;
  RandomShardings random(6);
  for (std::int64_t record = 0; record < packs->size(); ++record) {
    expect_boxes_of_whole(*packs, {record, 0, 0}, 6, random);
    for (const std::int32_t token : values_of<std::int32_t>(*packs, {record, 0, 0}, 0)) {
      if (token != 0) ++found[token];
    }
  }
  for (const auto& [size, most] : {std::pair{12, 7}, std::pair{24, 11}}) {
    for (std::int32_t d = 0; d < size; ++d) {
      if (5 * d % (most + 1) != 0) expected[100 * most + d] = 5 * d % (most + 1);
    }
  }
  EXPECT_EQ(found, expected);
}

TEST(MixStage, RefusesSourcesThatDiffer) {
  const auto make = [](Field field) {
    return std::make_shared<RaggedSource>(3, std::vector<Field>{std::move(field)});
  };
  const auto a = make({"x", DType::u8, {2}});
  const struct {
    std::vector<std::shared_ptr<const Source>> sources;
    std::vector<std::int64_t> weights;
    const char* message;
  } cases[] = {
      {{}, {}, "got 0 weights for 0 sources"},
      {{a}, {1, 1}, "got 2 weights for 1 sources"},
      {{a, nullptr}, {1, 1}, "source 1 is null"},
      {{a, take(a, 1, 1)}, {1, 1}, "source 1 has no records"},
      {{a, make({"x", DType::u8, {3}})},
       {1, 1},
       "source 1 has \"x\" u8 [3], needed is \"x\" u8 [2] as source 0 has"},
      {{a, make({"y", DType::u8, {2}})}, {1, 1}, "\"y\" u8 [2]"},
      {{a, make({"x", DType::i8, {2}})}, {1, 1}, "\"x\" i8 [2]"},
      {{a, make({"x", DType::u8, {2}, true})}, {1, 1}, "\"x\" u8 [2] ragged"},
      {{a, zip({a, make({"y", DType::u8, {2}})})},
       {1, 1},
       "source 1 has \"x\" u8 [2], \"y\" u8 [2], needed is \"x\""},
      {{a, a}, {1, -1}, "weight 1 is -1"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { mix(c.sources, c.weights); }),
                HasSubstr(c.message));
  }
}

TEST(SelectStages, ForwardLengthsOfTheRecordsThatTheyChoose) {
  const auto inner =
      std::make_shared<RaggedSource>(30, std::vector<Field>{{"t", DType::u8, {9}, true}});
  RandomShardings random(4);
  const std::shared_ptr<const Source> stages[] = {shuffle(inner), take(inner, 5, 20),
                                                  repeat(inner, 2), mix({inner, inner}, {2, 1})};
  for (const auto& stage : stages) {
    EXPECT_TRUE(stage->fields()[0].ragged);
    for (std::int64_t record = 0; record < stage->size(); ++record) {
      expect_boxes_of_whole(*stage, {record, 1, 2}, 3, random);
    }
  }
  std::multiset<std::int64_t> lengths, own;
  for (std::int64_t record = 0; record < 30; ++record) {
    lengths.insert(stages[0]->length({record, 0, 0}, 0));
    own.insert(inner->length({record, 0, 0}, 0));
  }
  EXPECT_EQ(lengths, own);
  EXPECT_EQ(stages[1]->length({3, 0, 0}, 0), inner->length({8, 0, 0}, 0));
}

TEST(SelectStages, FingerprintsTellSourceAndParameters) {
  std::vector<std::uint64_t> prints;
  for (const auto& a : {counted(10), counted(10, 1)}) {
    for (const auto& stage : {std::shared_ptr<const Source>(a), shuffle(a), shuffle(a, 1),
                              take(a, 0, 10), take(a, 0, 9), take(a, 1, 10), repeat(a, 1),
                              repeat(a, 2), mix({a, a}, {1, 1}), mix({a, a, a}, {1, 1, 1})}) {
      EXPECT_EQ(stage->fingerprint(), stage->fingerprint());
      prints.push_back(stage->fingerprint());
    }
  }
  EXPECT_EQ(std::set<std::uint64_t>(prints.begin(), prints.end()).size(), prints.size());
  EXPECT_EQ(shuffle(counted(10), 1)->fingerprint(), prints[2]);
}

}  // namespace
}  // namespace shardwise
