#include "shardwise/shard/torus/hybrid_mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <random>
#include <vector>

#include "testing/devices_of.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A box of devices numbered with x fastest; each 2x2 along x and y make up a process.
std::vector<DeviceAttributes> box(std::int64_t x, std::int64_t y, std::int64_t z) {
  std::vector<DeviceAttributes> devices;
  for (std::int64_t id = 0; id < x * y * z; ++id) {
    const Index at{id % x, id / x % y, id / (x * y)};
    const std::int64_t process = (at[2] * ((y + 1) / 2) + at[1] / 2) * ((x + 1) / 2) + at[0] / 2;
    devices.push_back({.id = id, .coordinates = at, .process = process});
  }
  return devices;
}

/// Equal boxes, each a slice.
std::vector<DeviceAttributes> slices(std::int64_t number, std::int64_t x, std::int64_t y) {
  std::vector<DeviceAttributes> devices;
  for (std::int64_t slice = 0; slice < number; ++slice) {
    for (DeviceAttributes device : box(x, y, 1)) {
      device.id += slice * x * y;
      device.slice_index = slice;
      device.process = 10 + slice;
      devices.push_back(device);
    }
  }
  return devices;
}

TEST(PhysicalMesh, IsTheTorusWhateverTheOrderOfTheList) {
  std::vector<DeviceAttributes> devices = box(2, 3, 1);
  for (DeviceAttributes& device : devices) device.coordinates[1] += 7;
  std::shuffle(devices.begin(), devices.end(), std::mt19937(1));
  EXPECT_EQ(physical_mesh(devices), Mesh({{"", 2}, {"", 3}, {"", 1}}, {0, 2, 4, 1, 3, 5}));
}

TEST(PhysicalMesh, RefusesWhatIsNoFullBox) {
  const std::int64_t far = std::int64_t{1} << 62;
  const struct {
    const char* name;
    std::vector<Index> places;
    const char* message;
  } cases[] = {
      {"none", {}, "no devices"},
      {"no coordinates", {{}}, "[]"},
      {"another rank", {{0, 0}, {1}}, "device 0 has the coordinates [0, 0] and device 1 [1]"},
      {"a hole", {{5, 0}, {5, 1}, {6, 1}}, "nothing is at [6, 0]"},
      {"a hole at the end", {{5, 0}, {5, 1}, {6, 0}}, "nothing is at [6, 1]"},
      {"two at a place", {{0, 0}, {0, 1}, {0, 1}, {1, 1}}, "devices 1 and 2 are at [0, 1]"},
      {"far apart", {{-far, 0}, {far, 1}}, "2^63 - 1"},
      {"far apart along two axes", {{0, 0}, {far, far}}, "2^63 - 1"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    std::vector<DeviceAttributes> devices;
    for (const Index& place : c.places) {
      devices.push_back({.id = std::ssize(devices), .coordinates = place});
    }
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { physical_mesh(devices); }),
                HasSubstr(c.message));
  }
}

TEST(DeviceMesh, FollowsTheTorus) {
  const std::vector<DeviceAttributes> devices = box(2, 2, 2);
  const Mesh mesh = device_mesh({{"data", 2}, {"model", 4}}, devices);
  // The model axis takes x and y, the data axis z.
  EXPECT_EQ(mesh, Mesh({{"data", 2}, {"model", 4}}, {0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(device_mesh({}, box(1, 1, 1)).size(), 1);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [] {
                           device_mesh({{"data", 2}, {"model", 8}}, box(4, 4, 1));
                         }),
              AllOf(HasSubstr("size 8"), HasSubstr("split")));
  EXPECT_EQ(device_mesh({{"data", 2}, {"model", 8}}, box(4, 4, 1), {.split_physical_axes = true})
                .axis_size("model"),
            8);
}

TEST(DeviceMesh, TakesDevicesWithoutCoordinatesByRisingId) {
  EXPECT_THAT(devices_of(device_mesh({{"a", 2}, {"b", 2}},
                                     std::vector<DeviceAttributes>{{7}, {3}, {12}, {5}})),
              ElementsAre(3, 5, 7, 12));
}

TEST(DeviceMesh, HasNeighboursInRingsWhereAKindIsKnown) {
  const struct {
    const char* kind;
    std::vector<DeviceAttributes> devices;
  } cases[] = {
      {"TPU v4 lite", box(2, 2, 1)}, {"TPU8i", box(2, 2, 1)},       {"TPU v5 lite", box(2, 2, 1)},
      {"TPU v5e", box(4, 2, 1)},     {"TPU v5 lite", box(4, 4, 1)}, {"TPU v6 lite", box(4, 4, 1)},
      {"TPU v5p", box(2, 2, 2)},     {"TPU v5", box(2, 2, 2)},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.kind);
    const Mesh mesh =
        device_mesh({{"", std::ssize(c.devices)}}, c.devices, {.device_kind = c.kind});
    for (std::int64_t p = 0; p < mesh.size(); ++p) {
      const auto at = [&](std::int64_t position) {
        return c.devices[static_cast<std::size_t>(mesh.device_at(position % mesh.size()))]
            .coordinates;
      };
      std::int64_t distance = 0;
      for (std::size_t axis = 0; axis < 3; ++axis) {
        distance += std::abs(at(p)[axis] - at(p + 1)[axis]);
      }
      EXPECT_EQ(distance, 1) << "after position " << p;
    }
  }
}

TEST(DeviceMesh, HasContiguousSubmeshesWhereAWayIsKnown) {
  const struct {
    std::vector<DeviceAttributes> devices;
    std::vector<Axis> axes;
  } cases[] = {
      {box(2, 2, 1), {{"", 2}, {"", 2}}},     {box(2, 2, 4), {{"", 4}, {"", 4}}},
      {box(4, 4, 4), {{"", 16}, {"", 4}}},    {box(4, 8, 8), {{"", 64}, {"", 4}}},
      {box(4, 8, 8), {{"", 4}, {"", 64}}},    {box(8, 8, 8), {{"", 64}, {"", 1}, {"", 8}}},
      {box(8, 16, 16), {{"", 256}, {"", 8}}}, {box(8, 16, 16), {{"", 8}, {"", 256}}},
  };
  for (const auto& c : cases) {
    const Mesh mesh = device_mesh(c.axes, c.devices, {.contiguous_submeshes = true});
    SCOPED_TRACE(mesh.to_string().substr(0, 40));
    std::map<std::int64_t, std::vector<std::int64_t>> positions;
    for (std::int64_t p = 0; p < mesh.size(); ++p) {
      positions[c.devices[static_cast<std::size_t>(mesh.device_at(p))].process].push_back(p);
    }
    for (const auto& [process, own] : positions) {
      std::int64_t volume = 1;
      for (std::size_t axis = 0; axis < mesh.rank(); ++axis) {
        std::int64_t low = mesh.size(), high = 0;
        for (const std::int64_t p : own) {
          low = std::min(low, mesh.coordinate(p, axis));
          high = std::max(high, mesh.coordinate(p, axis));
        }
        volume *= high - low + 1;
      }
      EXPECT_EQ(volume, std::ssize(own)) << "process " << process;
    }
  }
}

TEST(DeviceMesh, RefusesDevicesThatDoNotFit) {
  std::vector<DeviceAttributes> twice = box(2, 1, 1), half = box(2, 1, 1);
  twice[1].id = 0;
  half[1].coordinates = {};
  const struct {
    const char* name;
    std::vector<Axis> axes;
    std::vector<DeviceAttributes> devices;
    bool contiguous;
    const char* message;
  } cases[] = {
      {"too few",
       {{"", 4}, {"", 2}},
       box(2, 3, 1),
       false,
       "there are 6 devices; needed are 8, the product of the axes [4, 2]"},
      {"none", {{"", 4}}, {}, false, "there are 0 devices"},
      {"size 0", {{"a", 0}}, {}, false, "axes [0] have a size of 0"},
      {"negative", {{"a", -2}}, box(2, 1, 1), false, "a size of -2"},
      {"an id twice", {{"", 2}}, twice, false, "device id 0"},
      {"some without coordinates", {{"", 2}}, half, false, "device 1 []"},
      {"no contiguous way on the torus", {{"", 6}}, box(2, 3, 1), true, "none on this torus"},
      {"no contiguous way to the mesh",
       {{"", 8}, {"", 32}},
       box(4, 8, 8),
       true,
       "[64, 4] and [4, 64]"},
      {"axis name twice", {{"a", 2}, {"a", 1}}, box(2, 1, 1), false, "\"a\" is there twice"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(
        message_of(ErrorCode::invalid_argument,
                   [&] { device_mesh(c.axes, c.devices, {.contiguous_submeshes = c.contiguous}); }),
        HasSubstr(c.message));
  }
}

TEST(HybridMesh, AnswersAsInTheHeader) {
  const Mesh mesh = hybrid_mesh({{"data", 2, 2}, {"model", 2, 1}}, slices(2, 2, 2));
  EXPECT_EQ(mesh, Mesh({{"data", 4}, {"model", 2}}));
}

/// The two slices of PyTorch/XLA's own test, whose ids do not follow the places.
TEST(HybridMesh, PutsSlicesAsBlocksAndDevicesByPlace) {
  std::vector<DeviceAttributes> devices = slices(2, 2, 2);
  const DeviceId ids[] = {2, 1, 0, 3, 4, 7, 6, 5};
  for (std::size_t i = 0; i < devices.size(); ++i) devices[i].id = ids[i];
  const struct {
    std::vector<HybridAxis> axes;
    const char* mesh;
  } cases[] = {
      {{{"", 2, 2}, {"", 2, 1}}, "4,2@2,1,0,3,4,7,6,5"},
      {{{"", 2, 1}, {"", 2, 2}}, "2,4@2,1,4,7,0,3,6,5"},
      {{{"a", 1, 2}, {"b", 4, 1}, {"", 1, 1}}, "a=2,b=4,1@2,0,1,3,4,6,7,5"},
      {{{"", 4, 1}, {"", 1, 2}}, "4,2@2,4,0,6,1,7,3,5"},
      {{{"", 1, 2}, {"", 4, 1}}, "2,4@2,0,1,3,4,6,7,5"},
  };
  for (const auto& c : cases) {
    EXPECT_EQ(hybrid_mesh(c.axes, devices).to_string(), Mesh::parse(c.mesh).to_string());
  }
}

TEST(HybridMesh, OrdersSlicesByKeyOrAsListed) {
  std::vector<DeviceAttributes> devices = slices(3, 1, 1);
  std::rotate(devices.begin(), devices.begin() + 1, devices.end());
  EXPECT_THAT(devices_of(hybrid_mesh({{"a", 1, 3}}, devices)), ElementsAre(0, 1, 2));
  EXPECT_THAT(
      devices_of(hybrid_mesh({{"a", 1, 3}}, devices, {.granule_order = GranuleOrder::as_listed})),
      ElementsAre(1, 2, 0));
}

TEST(HybridMesh, TakesProcessesInsteadOfSlices) {
  std::vector<DeviceAttributes> devices = slices(2, 2, 1);
  for (DeviceAttributes& device : devices) {
    device.slice_index = {};
    device.process = -device.process;
  }
  EXPECT_THAT(
      devices_of(hybrid_mesh({{"a", 1, 2}, {"b", 2, 1}}, devices, {.granule = Granule::process})),
      ElementsAre(2, 3, 0, 1));
}

TEST(HybridMesh, NeedsNoSliceIndexWhereThereIsOneSlice) {
  const Mesh expected = device_mesh({{"a", 2}, {"b", 2}}, box(2, 2, 1));
  EXPECT_EQ(hybrid_mesh({{"a", 2}, {"b", 2}}, box(2, 2, 1)), expected);
  EXPECT_EQ(hybrid_mesh({{"a", 2}, {"b", 2}}, slices(1, 2, 2)), expected);
}

TEST(HybridMesh, GivesTheInnerOptionsToEachSlice) {
  const std::vector<HybridAxis> axes = {{"", 2, 2}, {"", 8, 1}};
  EXPECT_THROW(hybrid_mesh(axes, slices(2, 4, 4)), Error);
  EXPECT_EQ(hybrid_mesh(axes, slices(2, 4, 4), {.inner = {.split_physical_axes = true}}).size(),
            32);
  EXPECT_THAT(
      devices_of(hybrid_mesh({{"", 4, 2}}, slices(2, 2, 2), {.inner = {.device_kind = "TPU v5e"}})),
      ElementsAre(0, 1, 3, 2, 4, 5, 7, 6));
}

TEST(HybridMesh, RefusesSlicesThatDoNotFit) {
  const std::int64_t huge = std::int64_t{1} << 32;
  std::vector<DeviceAttributes> uneven = slices(2, 2, 2), mixed = slices(2, 1, 1),
                                twice = slices(2, 1, 1), holes = slices(2, 2, 2);
  uneven.pop_back();
  mixed[1].slice_index = {};
  twice[1].id = 0;
  holes[7].coordinates = {5, 1, 0};
  const struct {
    const char* name;
    std::vector<HybridAxis> axes;
    std::vector<DeviceAttributes> devices;
    const char* message;
  } cases[] = {
      {"slices, but one is expected",
       {{"", 8}, {"", 1}},
       slices(2, 2, 2),
       "in 2 slices; needed are 1, the product of the outer sizes [1, 1]"},
      {"no slice where slices are expected",
       {{"", 2, 2}},
       box(2, 2, 1),
       "in 1 slices; needed are 2"},
      {"another number of slices",
       {{"", 2, 3}, {"", 2, 2}},
       slices(2, 2, 2),
       "needed are 6, the product of the outer sizes [3, 2]"},
      {"another number of devices",
       {{"", 3, 2}, {"", 2, 1}},
       slices(2, 2, 2),
       "slice 0 has 4 devices; needed are 6, the product of the inner sizes [3, 2]"},
      {"a slice with fewer devices", {{"", 4, 2}}, uneven, "slice 1 has 3 devices"},
      {"some without slice",
       {{"", 1, 2}},
       mixed,
       "device 0 has a slice index and device 1 has none"},
      {"an id twice", {{"", 1, 2}}, twice, "device id 0"},
      {"a hole", {{"", 4, 2}}, holes, "slice 1: physical mesh: "},
      {"whole axes do not do",
       {{"", 2, 2}, {"", 8, 1}},
       slices(2, 4, 4),
       "slice 0: torus assignment: "},
      {"size 0", {{"", 4, 2}, {"", 0, 1}}, slices(2, 2, 2), "axis 1 has inner size 0"},
      {"negative", {{"", 4, -2}}, slices(2, 2, 2), "outer size -2"},
      {"no devices", {{"", 1, 1}}, {}, "in 0 slices"},
      {"too many", {{"", huge, huge}}, slices(2, 2, 2), "2^63 - 1"},
      {"too many slices", {{"", 1, huge}, {"", 1, huge}}, slices(2, 2, 2), "2^63 - 1"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { hybrid_mesh(c.axes, c.devices); }),
                HasSubstr(c.message));
  }
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument,
                 [] {
                   hybrid_mesh({{"", 2, 2}}, slices(2, 2, 2), {.granule = Granule::process});
                 }),
      HasSubstr("process 10 has 4 devices"));
}

TEST(HybridMesh, HoldsEveryDeviceOnce) {
  std::vector<DeviceAttributes> devices = slices(6, 16, 16);
  std::shuffle(devices.begin(), devices.end(), std::mt19937(2));
  const Mesh mesh = hybrid_mesh({{"", 8, 3}, {"", 4, 1}, {"", 8, 2}}, devices,
                                {.inner = {.split_physical_axes = true}});
  std::vector<DeviceId> ids = devices_of(mesh);
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(ids, devices_of(Mesh::line(6 * 256)));
}

}  // namespace
}  // namespace shardwise
