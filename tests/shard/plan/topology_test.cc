#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "shardwise/shard/plan/transfer_plan.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Topology, KnowsWhatLiesBetweenDevices) {
  const Topology topology(std::vector<DeviceAttributes>{
      {.id = 9, .slice_index = 1, .process = 2},
      {.id = 0, .slice_index = 0, .process = 0},
      {.id = 1, .slice_index = 0, .process = 0},
      {.id = 4, .slice_index = 0, .process = 1},
      {.id = 7, .slice_index = 1, .process = 0},
  });
  EXPECT_EQ(topology.link(9, 9), Link::same_device);
  EXPECT_EQ(topology.link(0, 1), Link::same_process);
  EXPECT_EQ(topology.link(4, 1), Link::same_slice);
  EXPECT_EQ(topology.link(9, 7), Link::same_slice);
  EXPECT_EQ(topology.link(0, 7), Link::between_slices);
  EXPECT_EQ(topology.site(4), (Topology::Site{0, 1}));
}

TEST(Topology, TakesDevicesWithoutASliceForOneSlice) {
  const Topology topology(
      std::vector<DeviceAttributes>{{.id = 0, .process = 0}, {.id = 1, .process = 1}});
  EXPECT_EQ(topology.link(0, 1), Link::same_slice);
}

TEST(Topology, WithoutDevicesIsOneProcess) {
  EXPECT_EQ(Topology().link(3, 1000), Link::same_process);
  EXPECT_EQ(Topology().link(3, 3), Link::same_device);
}

TEST(Topology, NamesWhatIsWrong) {
  const std::vector<DeviceAttributes> twice = {{.id = 3}, {.id = 5}, {.id = 3}};
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { Topology{twice}; }),
              HasSubstr("device 3"));
  const Topology topology(std::vector<DeviceAttributes>{{.id = 0}, {.id = 1}});
  for (const DeviceId device : {-1, 2}) {
    EXPECT_THAT(message_of(ErrorCode::not_found, [&] { topology.link(0, device); }),
                AllOf(HasSubstr("device " + std::to_string(device)), HasSubstr("2 devices")));
  }
}

TEST(Topology, NamesLinksAsTheyAreSpelt) {
  EXPECT_EQ(name(Link::same_device), "same_device");
  EXPECT_EQ(name(Link::same_process), "same_process");
  EXPECT_EQ(name(Link::same_slice), "same_slice");
  EXPECT_EQ(name(Link::between_slices), "between_slices");
}

}  // namespace
}  // namespace shardwise
