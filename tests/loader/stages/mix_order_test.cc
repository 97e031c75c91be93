#include "shardwise/loader/order/mix_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include "testing/errors.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

using ::testing::HasSubstr;

std::vector<std::int64_t> random_weights(RandomShardings& random, std::size_t sources) {
  std::vector<std::int64_t> weights(sources);
  for (std::int64_t& weight : weights) weight = random.draw(0, random.draw(0, 1) == 0 ? 4 : 60);
  weights[static_cast<std::size_t>(random.draw(0, static_cast<std::int64_t>(sources) - 1))] = 7;
  return weights;
}

// Counts one by one, checks draws, inverse, counts and how near each prefix is to the ratio.
void expect_near_ratio(const MixOrder& order, std::vector<std::int64_t>& drawn, std::int64_t begin,
                       std::int64_t end, const std::vector<std::int64_t>& weights) {
  const std::int64_t period = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
  const std::vector<std::int64_t> before = drawn;
  std::int64_t used = 0;
  for (const std::int64_t weight : weights) used += weight > 0 ? 1 : 0;
  const double most = used < 2 ? 0 : 1 - 1.0 / static_cast<double>(2 * used - 2);
  for (std::int64_t number = begin; number < end; ++number) {
    for (std::int64_t s = 0; s < order.num_sources(); ++s) {
      ASSERT_EQ(order.drawn_before(number, s), drawn[static_cast<std::size_t>(s)]);
    }
    const MixOrder::Draw draw = order.at(number);
    const auto source = static_cast<std::size_t>(draw.source);
    ASSERT_EQ(draw.count, drawn[source]) << number;
    ASSERT_EQ(order.number_of(draw.source, draw.count), number);
    ++drawn[source];
    const std::int64_t so_far = number + 1 - begin;
    for (std::size_t s = 0; s < weights.size(); ++s) {
      const double exact = static_cast<double>(so_far) * static_cast<double>(weights[s]) /
                           static_cast<double>(period);
      ASSERT_LE(std::abs(static_cast<double>(drawn[s] - before[s]) - exact), most + 1e-9)
          << "source " << s << " after " << so_far;
      if (so_far % period == 0) {
        ASSERT_EQ(drawn[s] - before[s], so_far / period * weights[s]);
      }
    }
  }
}

TEST(MixOrder, ThreeToOne) {
  const MixOrder order({3, 1});
  std::vector<std::int64_t> sources;
  for (std::int64_t number = 0; number < 8; ++number) sources.push_back(order.at(number).source);
  EXPECT_THAT(sources, ::testing::ElementsAre(0, 0, 1, 0, 0, 0, 1, 0));
}

TEST(MixOrder, EveryPrefixIsNearTheRatioAndEveryPeriodExact) {
  RandomShardings random(1);
  for (int trial = 0; trial < 150; ++trial) {
    const std::vector<std::int64_t> weights =
        random_weights(random, static_cast<std::size_t>(random.draw(1, 9)));
    const std::int64_t period = std::accumulate(weights.begin(), weights.end(), std::int64_t{0});
    const MixOrder order(weights);
    std::vector<std::int64_t> drawn(weights.size());
    expect_near_ratio(order, drawn, 0, 3 * period + 1, weights);
  }
}

TEST(MixOrder, WeightsChangeAtTheGivenSamples) {
  RandomShardings random(2);
  for (int trial = 0; trial < 100; ++trial) {
    const auto sources = static_cast<std::size_t>(random.draw(1, 5));
    std::vector<std::vector<std::int64_t>> weights{random_weights(random, sources)};
    std::vector<std::int64_t> begins{0};
    std::vector<MixChange> changes;
    for (std::int64_t i = random.draw(0, 4); i > 0; --i) {
      begins.push_back(begins.back() + random.draw(1, 90));
      weights.push_back(random_weights(random, sources));
      changes.push_back({begins.back(), weights.back()});
    }
    const MixOrder order(weights[0], changes);
    begins.push_back(begins.back() + 200);
    std::vector<std::int64_t> drawn(sources);
    for (std::size_t i = 0; i < weights.size(); ++i) {
      expect_near_ratio(order, drawn, begins[i], begins[i + 1], weights[i]);
    }
    for (std::size_t s = 0; s < sources; ++s) {
      if (weights.back()[s] != 0) continue;
      EXPECT_EQ(order.number_of(static_cast<std::int64_t>(s), drawn[s]), -1);
    }
  }
}

TEST(MixOrder, FarAwaySamplesAreFoundAtOnce) {
  const MixOrder order({999, 1, 24});
  const std::int64_t period = 1024, far = (std::int64_t{1} << 50) * period;
  for (std::int64_t number = 0; number < period; ++number) {
    const MixOrder::Draw near = order.at(number), draw = order.at(far + number);
    EXPECT_EQ(draw.source, near.source);
    const std::int64_t weights[] = {999, 1, 24};
    EXPECT_EQ(draw.count, near.count + (std::int64_t{1} << 50) * weights[near.source]);
    EXPECT_EQ(order.number_of(draw.source, draw.count), far + number);
  }
}

TEST(MixOrder, TakesManySourcesAndLongPeriods) {
  const MixOrder order(std::vector<std::int64_t>(1000, 1024));
  std::vector<std::int64_t> drawn(1000);
  for (std::int64_t number = 0; number < 1024000; ++number) {
    const MixOrder::Draw draw = order.at(number);
    ASSERT_EQ(draw.count, drawn[static_cast<std::size_t>(draw.source)]++);
  }
  for (const std::int64_t count : drawn) EXPECT_EQ(count, 1024);
}

TEST(MixOrder, RefusesWeightsThatCannotBe) {
  const std::int64_t most = MixOrder::kMaxPeriod;
  const struct {
    std::vector<std::int64_t> weights;
    std::vector<MixChange> changes;
    const char* message;
  } cases[] = {
      {{}, {}, "got 0 weights, needed is 1 to 4096"},
      {std::vector<std::int64_t>(4097, 1), {}, "got 4097 weights"},
      {{1, -1}, {}, "weight 1 is -1, needed is 0"},
      {{0, 0}, {}, "the weights sum to 0"},
      {{most, 1}, {}, "the weights sum to 4194305"},
      {{INT64_MAX, INT64_MAX}, {}, "weight 0 is 9223372036854775807"},
      {{1, 1}, {{5, {1}}}, "the change at sample 5 has 1 weights, needed is 2"},
      {{1, 1}, {{0, {1, 1}}}, "a change begins at sample 0, needed is one after 0"},
      {{1, 1}, {{5, {1, 1}}, {5, {1, 1}}}, "needed is one after 5"},
      {{1, 1}, {{5, {0, 0}}}, "sum to 0"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.message);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] { MixOrder(c.weights, c.changes).num_sources(); }),
                HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace shardwise
