#include "shardwise/shard/plan/transfer_traffic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "testing/errors.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Traffic, IsCountedByDeviceAndLink) {
  const Topology topology(std::vector<DeviceAttributes>{
      {.id = 0, .slice_index = 0, .process = 0},
      {.id = 1, .slice_index = 0, .process = 0},
      {.id = 2, .slice_index = 0, .process = 1},
      {.id = 3, .slice_index = 1, .process = 2},
  });
  const TransferPlan plan(
      {{0, Box({0}, {4})}, {1, Box({4}, {6})}, {2, Box({6}, {7})}, {3, Box({7}, {10})}},
      {{0, Box({0}, {10})}, {3, Box({5}, {10})}});
  const Traffic result = traffic(plan, 2, topology);
  EXPECT_EQ(result.kept, 8u + 6u);
  EXPECT_THAT(result.moved, ElementsAre(0, 4, 2, 6 + 2 + 2));
  EXPECT_THAT(result.devices, ElementsAre(DeviceTraffic{0, 8, {}, {0, 4, 2, 6}},
                                          DeviceTraffic{1, 0, {0, 4, 0, 2}, {}},
                                          DeviceTraffic{2, 0, {0, 0, 2, 2}, {}},
                                          DeviceTraffic{3, 6, {0, 0, 0, 6}, {0, 0, 0, 4}}));
  EXPECT_THAT(message_of(ErrorCode::not_found,
                         [&] {
                           traffic(TransferPlan({{5, Box()}}, {}), 1, topology);
                         }),
              HasSubstr("device 5"));
}

TEST(Traffic, BetweenShardingsIsWhatEachDeviceLacks) {
  RandomShardings random(18);
  for (int round = 0; round < 1000; ++round) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(0, 3));
    const Shape shape = random.shape(rank);
    const Sharding from = random.sharding(rank, shape), to = random.sharding(rank, shape);
    const Traffic result = traffic(TransferPlan::reshard(from, to, shape), 1);
    std::size_t sent = 0, received = 0;
    for (const DeviceTraffic& device : result.devices) {
      // Element by element: what it wants and does not have.
      std::size_t kept = 0, lacking = 0;
      if (const auto position = to.mesh().position_of(device.device)) {
        const auto old = from.mesh().position_of(device.device);
        for (const Index& element : indices_of(to.box_at(*position, shape))) {
          ++(old && holds(from.box_at(*old, shape), element) ? kept : lacking);
        }
      }
      ASSERT_EQ(device.kept, kept) << from.to_string() << " to " << to.to_string();
      ASSERT_THAT(device.received, ElementsAre(0, lacking, 0, 0));
      received += lacking;
      for (const std::size_t bytes : device.sent) sent += bytes;
    }
    ASSERT_EQ(sent, received);
    ASSERT_THAT(result.moved, ElementsAre(0, received, 0, 0));
  }
}

}  // namespace
}  // namespace shardwise
