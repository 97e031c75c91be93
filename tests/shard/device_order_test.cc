#include "shardwise/shard/device_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "shardwise/shard/error.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<DeviceId> devices(const DeviceOrder& order) {
  std::vector<DeviceId> all;
  for (std::int64_t p = 0; p < order.size(); ++p) all.push_back(order.device_at(p));
  return all;
}

/// iota reshaped to `dims`, transposed and flattened, index by index.
std::vector<DeviceId> by_hand(const std::vector<std::int64_t>& dims,
                              const std::vector<std::int64_t>& perm) {
  std::vector<std::int64_t> at(dims.size(), 0);  // in the transposed array
  std::vector<DeviceId> all;
  const std::int64_t size =
      std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
  for (std::int64_t p = 0; p < size; ++p) {
    std::vector<std::int64_t> index(dims.size());
    for (std::size_t i = 0; i < perm.size(); ++i) index[static_cast<std::size_t>(perm[i])] = at[i];
    DeviceId device = 0;
    for (std::size_t i = 0; i < dims.size(); ++i) device = device * dims[i] + index[i];
    all.push_back(device);
    for (std::size_t i = dims.size(); i-- > 0;) {
      if (++at[i] < dims[static_cast<std::size_t>(perm[i])]) break;
      at[i] = 0;
    }
  }
  return all;
}

TEST(DeviceOrder, AnswersAsInTheHeader) {
  const DeviceOrder order = DeviceOrder::transposed({4, 2}, {1, 0});
  EXPECT_THAT(devices(order), ElementsAre(0, 2, 4, 6, 1, 3, 5, 7));
  EXPECT_EQ(order, DeviceOrder::parse("[4,2]T(1,0)"));
  EXPECT_EQ(order, DeviceOrder::list({0, 2, 4, 6, 1, 3, 5, 7}));
  EXPECT_EQ(order.to_string(), "[4,2]T(1,0)");
}

TEST(DeviceOrder, IsCanonicalAsXlaIs) {
  const struct {
    std::vector<std::int64_t> dims, perm;
    const char* text;
  } cases[] = {
      {{6}, {0}, "[6]"},
      {{3, 4}, {0, 1}, "[12]"},
      {{1, 3, 1, 4, 1, 5}, {4, 3, 2, 5, 1, 0}, "[3,20]T(1,0)"},
      {{2, 3, 4}, {1, 0, 2}, "[2,3,4]T(1,0,2)"},
      {{3, 4, 5}, {2, 0, 1}, "[12,5]T(1,0)"},
      {{2, 2, 3}, {2, 1, 0}, "[2,2,3]T(2,1,0)"},
      {{1, 1}, {0, 1}, "[1]"},
      {{}, {}, "[1]"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    const DeviceOrder order = DeviceOrder::transposed(c.dims, c.perm);
    EXPECT_EQ(order.to_string(), c.text);
    EXPECT_EQ(devices(order), by_hand(c.dims, c.perm));
    EXPECT_EQ(DeviceOrder::parse(c.text), order);
  }
}

TEST(DeviceOrder, RandomPatternsAreRecognisedInAList) {
  std::mt19937 random(2);
  const auto draw = [&random](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random);
  };
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::int64_t> dims(static_cast<std::size_t>(draw(0, 5)));
    for (std::int64_t& dim : dims) dim = draw(1, 4);
    std::vector<std::int64_t> perm(dims.size());
    std::iota(perm.begin(), perm.end(), 0);
    std::shuffle(perm.begin(), perm.end(), random);
    const DeviceOrder order = DeviceOrder::transposed(dims, perm);
    const std::vector<DeviceId> ids = by_hand(dims, perm);
    SCOPED_TRACE(order.to_string());
    ASSERT_EQ(devices(order), ids);
    ASSERT_TRUE(order.is_compact());
    ASSERT_EQ(order, DeviceOrder::list(ids));
    ASSERT_EQ(order, DeviceOrder::parse(order.to_string()));
    ASSERT_EQ(order.is_iota(), std::is_sorted(ids.begin(), ids.end()));
    for (std::size_t p = 0; p < ids.size(); ++p) {
      ASSERT_EQ(order.position_of(ids[p]), static_cast<std::int64_t>(p));
      ASSERT_EQ(order.nth_smallest(static_cast<std::int64_t>(p)), static_cast<DeviceId>(p));
    }
    ASSERT_FALSE(order.position_of(static_cast<DeviceId>(ids.size())));
  }
}

TEST(DeviceOrder, AnyListIsKeptAsItIs) {
  std::mt19937 random(3);
  int compact = 0;
  for (int round = 0; round < 5000; ++round) {
    const std::size_t size = 1 + random() % 8;
    std::vector<DeviceId> ids(size + random() % 4);
    std::iota(ids.begin(), ids.end(), static_cast<DeviceId>(random() % 3));
    std::shuffle(ids.begin(), ids.end(), random);
    ids.resize(size);
    const DeviceOrder order = DeviceOrder::list(ids);
    SCOPED_TRACE(order.to_string());
    ASSERT_EQ(devices(order), ids);
    ASSERT_EQ(order, DeviceOrder::parse(order.to_string()));
    std::vector<DeviceId> sorted = ids;
    std::sort(sorted.begin(), sorted.end());
    for (DeviceId device = 0; device < 16; ++device) {
      const auto found = std::find(ids.begin(), ids.end(), device);
      ASSERT_EQ(order.position_of(device).value_or(-1),
                found == ids.end() ? -1 : found - ids.begin());
    }
    for (std::size_t k = 0; k < size; ++k) {
      ASSERT_EQ(order.nth_smallest(static_cast<std::int64_t>(k)), sorted[k]);
    }
    compact += order.is_compact() ? 1 : 0;
  }
  EXPECT_GT(compact, 100);
  EXPECT_LT(compact, 4900);
}

TEST(DeviceOrder, PatternsWithGapsStayCompact) {
  // A column of a 4 x 4 mesh, and one of two planes.
  const DeviceOrder column = DeviceOrder::list({1, 5, 9, 13});
  EXPECT_TRUE(column.is_compact());
  EXPECT_EQ(column.position_of(9), 2);
  EXPECT_FALSE(column.position_of(8));
  EXPECT_FALSE(column.position_of(17));
  EXPECT_EQ(column.to_string(), "1,5,9,13");
  const DeviceOrder plane = DeviceOrder::list({2, 18, 3, 19});
  EXPECT_TRUE(plane.is_compact());
  EXPECT_EQ(plane.position_of(3), 2);
  EXPECT_FALSE(plane.position_of(4));
}

TEST(DeviceOrder, HoldsIdsUpToTheLast) {
  // Each begins like a pattern, whose next digit would be past 2^63.
  const DeviceId last = std::numeric_limits<DeviceId>::max();
  for (const std::vector<DeviceId>& ids :
       std::vector<std::vector<DeviceId>>{{0, last - 1, 972075806, 972036854775707},
                                          {0, last / 2 + 1, 1, last},
                                          {last, 0, 5, last - 1},
                                          {0, last}}) {
    const DeviceOrder order = DeviceOrder::list(ids);
    EXPECT_EQ(devices(order), ids);
    EXPECT_EQ(order, DeviceOrder::parse(order.to_string()));
    for (std::size_t p = 0; p < ids.size(); ++p) {
      EXPECT_EQ(order.position_of(ids[p]), static_cast<std::int64_t>(p));
    }
  }
}

TEST(DeviceOrder, TakesNoMemoryPerDevice) {
  const std::int64_t many = std::int64_t{1} << 40;
  const DeviceOrder order = DeviceOrder::transposed({many, 4}, {1, 0});
  EXPECT_EQ(order.size(), 4 * many);
  EXPECT_EQ(order.device_at(many), 1);
  EXPECT_EQ(order.position_of(1), many);
  EXPECT_EQ(DeviceOrder::iota(INT64_MAX).device_at(INT64_MAX - 1), INT64_MAX - 1);
}

TEST(DeviceOrder, RefusesWhatIsNoOrder) {
  const struct {
    const char* text;
    const char* found;
  } cases[] = {
      {"", "\"\" is not a device id"},
      {"1,x", "\"x\" is not a device id"},
      {"0,-1", "\"-1\" is not a device id"},
      {"3,3", "device id 3 is at positions 0 and 1"},
      {"[2", "has no ']'"},
      {"[0]", "at least 1"},
      {"[2,2]T(0)", "each of the 2 dims once"},
      {"[2,2]T(0,0)", "each of the 2 dims once"},
      {"[2,2]T(0,2)", "each of the 2 dims once"},
      {"[2,2]R(1,0)", "goes on with \"R(1,0)\""},
      {"[9223372036854775807,3]", "product below 2^63"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { DeviceOrder::parse(c.text); }),
                AllOf(HasSubstr("device order"), HasSubstr(c.found)));
  }
  EXPECT_THROW(DeviceOrder::iota(0), Error);
  EXPECT_THROW(DeviceOrder::list({}), Error);
  EXPECT_THROW(DeviceOrder::list({0, -1}), Error);
  // Sums of these ids overflow; they are a list like any other.
  const DeviceOrder ends = DeviceOrder::list({INT64_MAX, 0, INT64_MAX - 1});
  EXPECT_EQ(ends.position_of(INT64_MAX - 1), 2);
}

}  // namespace
}  // namespace shardwise
