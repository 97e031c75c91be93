#include "shardwise/shard/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "shardwise/shard/error.h"
#include "testing/errors.h"
#include "testing/random_shardings.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Mesh, AnswersAsInTheHeader) {
  const Mesh mesh({{"data", 4}, {"model", 2}});
  EXPECT_EQ(mesh.size(), 8);
  EXPECT_EQ(mesh.rank(), 2u);
  EXPECT_EQ(mesh.axis_size("model"), 2);
  EXPECT_EQ(mesh.coordinate(5, 0), 2);
  EXPECT_EQ(mesh.coordinate(5, 1), 1);
  EXPECT_EQ(mesh.stride(0), 2);
  EXPECT_EQ(mesh.device_at(5), 5);
  EXPECT_TRUE(mesh.devices().is_iota());
  EXPECT_EQ(Mesh::parse("data=4,model=2"), mesh);
  EXPECT_EQ(Mesh::line(3), Mesh({{"devices", 3}}));
}

TEST(Mesh, WithoutAxesHasOneDevice) {
  const Mesh mesh{std::vector<Axis>{}};
  EXPECT_EQ(mesh.size(), 1);
  EXPECT_EQ(mesh.rank(), 0u);
  EXPECT_EQ(mesh.device_at(0), 0);
  EXPECT_EQ(mesh, Mesh::parse(""));
  EXPECT_EQ(Mesh::parse("@5").device_at(0), 5);
}

TEST(Mesh, TakesAnAxisByNameOrNumber) {
  const Mesh named({{"data", 4}, {"model", 2}});
  EXPECT_EQ(named.axis_index("model"), 1u);
  EXPECT_EQ(named.axis_index("1"), 1u);
  const Mesh unnamed = Mesh::parse("4,2");
  EXPECT_EQ(unnamed.axes()[1].name, "1");
  EXPECT_EQ(unnamed.axis_size("1"), 2);
  // A name goes before a number.
  EXPECT_EQ(Mesh({{"1", 4}, {"0", 2}}).axis_index("1"), 0u);
  for (const char* axis : {"pipe", "2", "-1", "", "Data"}) {
    EXPECT_THAT(message_of(ErrorCode::no_such_name, [&] { named.axis_index(axis); }),
                AllOf(HasSubstr(quoted(axis)), HasSubstr("data=4,model=2")));
  }
}

TEST(Mesh, KeepsTheDeviceOrderItIsGiven) {
  const Mesh mesh({{"a", 2}, {"b", 2}}, {30, 10, 20, 0});
  EXPECT_FALSE(mesh.devices().is_iota());
  EXPECT_EQ(mesh.device_at(2), 20);
  EXPECT_EQ(mesh.position_of(10), 1);
  EXPECT_EQ(mesh.position_of(15), std::nullopt);
  EXPECT_EQ(mesh.position_of(31), std::nullopt);
  EXPECT_EQ(mesh.position_of(-1), std::nullopt);
  EXPECT_NE(mesh, Mesh({{"a", 2}, {"b", 2}}));
  EXPECT_NE(mesh, Mesh({{"a", 2}, {"b", 2}}, {10, 30, 20, 0}));
}

TEST(Mesh, WithDevicesInOrderEqualsTheMeshWithoutAList) {
  const Mesh mesh({{"a", 2}, {"b", 2}}, {0, 1, 2, 3});
  EXPECT_TRUE(mesh.devices().is_iota());
  EXPECT_EQ(mesh, Mesh({{"a", 2}, {"b", 2}}));
  EXPECT_EQ(mesh.position_of(3), 3);
  EXPECT_EQ(mesh.position_of(4), std::nullopt);
  EXPECT_EQ(mesh.position_of(-1), std::nullopt);
  EXPECT_NE(mesh, Mesh({{"a", 2}, {"c", 2}}));
  EXPECT_NE(mesh, Mesh({{"a", 4}}));
}

TEST(Mesh, OfAMillionDevicesInOrderKeepsNoList) {
  const Mesh mesh({{"a", std::int64_t{1} << 40}, {"b", std::int64_t{1} << 22}});
  EXPECT_EQ(mesh.size(), std::int64_t{1} << 62);
  EXPECT_EQ(mesh.coordinate(mesh.size() - 1, 0), (std::int64_t{1} << 40) - 1);
  EXPECT_EQ(mesh.position_of(mesh.size()), std::nullopt);
}

TEST(Mesh, RefusesWhatIsNoGrid) {
  const struct {
    const char* name;
    std::vector<Axis> axes;
    const char* message;
  } cases[] = {
      {"size 0", {{"a", 2}, {"b", 0}}, "\"b\" has size 0"},
      {"negative size", {{"a", -2}}, "\"a\" has size -2"},
      {"repeated name", {{"a", 2}, {"a", 3}}, "\"a\" is there twice"},
      {"name that stands for an index", {{"1", 2}, {"", 3}}, "\"1\" is there twice"},
      {"reserved character", {{"a+b", 2}}, "'+'"},
      {"blank", {{"a b", 2}}, "' '"},
      {"line end", {{"a\nb", 2}}, "axis name \"a\\nb\" contains the reserved character '\\n'"},
      {"escape", {{"a\x1b[31m", 2}}, "reserved character '\\x1b'"},
      {"delete", {{"a\x7f", 2}}, "reserved character '\\x7f'"},
      {"NUL", {{std::string("a\0b", 3), 2}}, "reserved character '\\x00'"},
      {"too many", {{"a", std::int64_t{1} << 40}, {"b", std::int64_t{1} << 23}}, "2^63 - 1"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { Mesh{c.axes}; }),
                HasSubstr(c.message));
  }
}

TEST(Mesh, RefusesDeviceListsThatDoNotFit) {
  const struct {
    const char* name;
    std::vector<DeviceId> ids;
    const char* message;
  } cases[] = {
      {"too few", {0, 1, 2}, "3 device ids for 4 positions"},
      {"too many", {0, 1, 2, 3, 4}, "5 device ids for 4 positions"},
      {"none", {}, "0 device ids"},
      {"negative", {0, -7, 2, 3}, "-7"},
      {"twice", {0, 9, 2, 9}, "9 is at positions 1 and 3"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] {
                             Mesh({{"x", 2}, {"y", 2}}, c.ids);
                           }),
                AllOf(HasSubstr(c.message), HasSubstr("x=2,y=2")));
  }
}

TEST(Mesh, TextGoesBothWays) {
  for (const char* text :
       {"", "@5", "4", "4,2", "data=4,model=2", "data=2,model=2@3,1,0,2", "2,model=3", "0=2@7,5"}) {
    const Mesh mesh = Mesh::parse(text);
    EXPECT_EQ(Mesh::parse(mesh.to_string()), mesh) << text;
  }
  EXPECT_EQ(Mesh::parse(" data = 4 , 2 @ 7,6,5,4,3,2,1,0 ").to_string(),
            "data=4,2@7,6,5,4,3,2,1,0");
  EXPECT_EQ(Mesh::parse("a=2@0,1").to_string(), "a=2");
}

TEST(Mesh, ParseRefusesWhatIsNoMesh) {
  const struct {
    const char* text;
    const char* culprit;
  } cases[] = {
      {"data=", "\"\" is not an axis size"},
      {"data=x", "\"x\" is not an axis size"},
      {"data=-1", "\"-1\" is not an axis size"},
      {"data", "\"data\" is not an axis"},
      {"4,,2", "\"\" is not an axis"},
      {"4,", "\"\" is not an axis"},
      {"4@", "\"\" is not a device id"},
      {"2@0,b", "\"b\" is not a device id"},
      {"2@0,1@2", "\"1@2\" is not a device id"},
      {"a=b=2", "\"b=2\" is not an axis size"},
      {"2@0,1,2", "3 device ids for 2 positions"},
      {"a=2,a=2", "\"a\" is there twice"},
      {"a=0", "size 0"},
      {"a=99999999999999999999", "99999999999999999999"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { Mesh::parse(c.text); }),
                HasSubstr(c.culprit));
  }
}

TEST(Mesh, PositionsCoordinatesAndDevicesAgree) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::vector<Axis> axes(random() % 5);
    std::int64_t size = 1;
    for (Axis& axis : axes) size *= axis.size = 1 + random() % 4;
    std::vector<DeviceId> ids(static_cast<std::size_t>(3 * size));
    std::iota(ids.begin(), ids.end(), 0);
    if (random() % 3 > 0) std::shuffle(ids.begin(), ids.end(), random);
    ids.resize(static_cast<std::size_t>(size));
    const Mesh mesh(axes, ids);
    EXPECT_EQ(Mesh::parse(mesh.to_string()), mesh);
    std::vector<std::int64_t> at(axes.size(), 0);
    for (std::int64_t position = 0; position < size; ++position) {
      std::int64_t found = 0;
      for (std::size_t i = 0; i < axes.size(); ++i) {
        EXPECT_EQ(mesh.coordinate(position, i), at[i]);
        found += at[i] * mesh.stride(i);
      }
      EXPECT_EQ(found, position);
      EXPECT_EQ(mesh.device_at(position), ids[static_cast<std::size_t>(position)]);
      EXPECT_EQ(mesh.position_of(mesh.device_at(position)), position);
      for (std::size_t i = axes.size(); i-- > 0;) {
        if (++at[i] < axes[i].size) break;
        at[i] = 0;
      }
    }
  }
}

TEST(Mesh, WithoutDevicesAnswersByPosition) {
  const Mesh mesh = Mesh::abstract({{"x", 2}, {"y", 3}});
  EXPECT_TRUE(mesh.is_abstract());
  EXPECT_EQ(mesh.size(), 6);
  EXPECT_EQ(mesh.coordinate(4, 0), 1);
  EXPECT_EQ(mesh.to_string(), "x=2,y=3@?");
  EXPECT_EQ(Mesh::parse("x=2,y=3@?"), mesh);
  EXPECT_FALSE(mesh == Mesh::parse("x=2,y=3"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { mesh.device_at(0); }),
              AllOf(HasSubstr("x=2,y=3"), HasSubstr("abstract")));
  EXPECT_THROW(mesh.position_of(0), Error);
}

TEST(Mesh, KeepsTheTransposedOrderCompact) {
  const Mesh mesh = Mesh::parse("data=2,model=4@[4,2]T(1,0)");
  EXPECT_EQ(mesh, Mesh({{"data", 2}, {"model", 4}}, {0, 2, 4, 6, 1, 3, 5, 7}));
  EXPECT_EQ(mesh.to_string(), "data=2,model=4@[4,2]T(1,0)");
  EXPECT_TRUE(mesh.devices().is_compact());
}

}  // namespace
}  // namespace shardwise
