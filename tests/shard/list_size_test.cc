#include "shardwise/shard/detail/list_size.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

#include "shardwise/shard/notation/xla_text.h"
#include "shardwise/shard/owned_tiles.h"
#include "shardwise/shard/plan/transfer_plan.h"
#include "shardwise/shard/view/explain.h"
#include "shardwise/shard/view/process_view.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(ListSize, IsThatOfTheMesh) {
  EXPECT_EQ(detail::list_size(7, "the seven"), 7u);
  EXPECT_EQ(detail::list_size(kMostListedPositions, "all"), std::size_t{16777216});
}

TEST(ListSize, IsLimitedWhereverPositionsAreListed) {
  // A list of any of these would not fit into memory.
  const std::int64_t size = std::int64_t{1} << 50;
  const Mesh mesh({{"a", size}, {"b", 2}});
  const Sharding cut(mesh, PartitionSpec{{"a"}, {"b"}}), whole(mesh, PartitionSpec{{}, {}});
  const Shape shape{size, 2};
  const struct {
    const char* name;
    std::function<void()> list;
    std::int64_t positions;
  } cases[] = {
      {"the pieces of a mesh", [&] { TransferPlan::reshard(cut, whole, shape); }, 2 * size},
      {"the pieces of a mesh", [&] { explain_reshard(cut, whole, shape); }, 2 * size},
      {"the positions that hold a tile",
       [&] {
         positions_of(whole, {0, 0});
       },
       2 * size},
      {"the positions that hold a tile",
       [&] {
         whole.distinct_pieces({4, 4});
       },
       2 * size},
      {"the devices of a tile assignment", [&] { tile_assignment(cut); }, 2 * size},
      {"the devices of an XLA text", [&] { to_xla_v1(cut); }, 2 * size},
      {"the processes of a mesh", [&] { ProcessView(cut, [](DeviceId) { return 0; }); }, 2 * size},
  };
  for (const auto& c : cases) {
    EXPECT_THAT(message_of(ErrorCode::unsupported, c.list),
                AllOf(HasSubstr(std::string("list ") + c.name),
                      HasSubstr("there are " + std::to_string(c.positions)),
                      HasSubstr("at most 16777216")));
  }
  EXPECT_EQ(cut.distinct_pieces({3, 2}).size(), 6u);
}

// Half a minute: as many are listed before it is known that there are too many.
TEST(ListSizeNightly, DistinctPieces) {
  const std::int64_t size = std::int64_t{1} << 50;
  const Sharding cut(Mesh({{"a", size}, {"b", 2}}), PartitionSpec{{"a"}, {"b"}});
  EXPECT_THAT(message_of(ErrorCode::unsupported,
                         [&] {
                           cut.distinct_pieces({size, 2});
                         }),
              AllOf(HasSubstr("list the distinct pieces"),
                    HasSubstr("there are " + std::to_string(kMostListedPositions + 1)),
                    HasSubstr("at most 16777216")));
}

}  // namespace
}  // namespace shardwise
