#include "shardwise/loader/detail/engine/batch_array.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "shardwise/runtime/sharded_array.h"
#include "testing/errors.h"
#include "testing/random_shardings.h"

namespace shardwise::detail {
namespace {

using ::testing::HasSubstr;

BatchArray without_halo(const ArraySpec& array) {
  Shape available;
  for (std::size_t dim = 1; dim < array.shape.size(); ++dim) available.push_back(array.shape[dim]);
  return BatchArray({array.dtype, array.shape, available, {}}, array.sharding,
                    [](std::int64_t) { return true; });
}

std::vector<Slab> allocate_slabs(const BatchArray& array,
                                 std::vector<std::vector<std::byte>>& memory) {
  std::vector<Slab> slabs;
  for (const std::size_t bytes : array.bytes_at()) memory.emplace_back(bytes + 1);
  for (std::vector<std::byte>& part : memory) slabs.push_back({part.data()});
  return slabs;
}

// Every byte of every device, against the whole batch cut by from_host.
TEST(BatchArray, CoversEveryBoxWhateverTheSharding) {
  RandomShardings random(11);
  Devices devices(48, {.threads = 1});
  for (int i = 0; i < 400; ++i) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(1, 4));
    const Sharding sharding = random.sharding(rank);
    Shape shape = random.shape(rank);
    shape[0] = std::max<std::int64_t>(shape[0], 1);
    const ArraySpec array{DType::u16, shape, sharding};
    SCOPED_TRACE(sharding.to_string() + " " + to_string(shape));

    std::vector<std::byte> whole(num_bytes(shape, 2));
    for (std::byte& byte : whole) byte = static_cast<std::byte>(random.draw(0, 255));
    const Box batch = Box::whole(shape);
    const std::size_t row_bytes = whole.size() / static_cast<std::size_t>(shape[0]);

    const BatchArray placement = without_halo(array);
    std::vector<std::vector<std::byte>> memory;
    const std::vector<Slab> slabs = allocate_slabs(placement, memory);
    for (std::int64_t begin = 0; begin < shape[0];) {
      const std::int64_t end = random.draw(begin + 1, shape[0]);
      for (const BatchArray::Piece& piece : placement.pieces()) {
        EXPECT_TRUE(piece.is_direct);
        EXPECT_EQ(piece.direct_begin, 0u);
        EXPECT_EQ(piece.valid, piece.block);
        std::byte* const data = slabs[static_cast<std::size_t>(piece.positions[0])].data;
        const std::int64_t last = std::min(end, piece.end_row);
        for (std::int64_t at = std::max(begin, piece.begin_row); at < last; ++at) {
          // The record seen as a batch of one row.
          Index from = batch.begin(), to = batch.end();
          from[0] = at;
          to[0] = at + 1;
          const Box row(from, to);
          for (std::size_t dim = 1; dim < rank; ++dim) {
            from[dim] = piece.valid.begin(dim - 1);
            to[dim] = piece.valid.end(dim - 1);
          }
          const Box part(from, to);
          copy_box(part, 2, {whole.data() + static_cast<std::size_t>(at) * row_bytes, row},
                   {data + static_cast<std::size_t>(at - piece.begin_row) * piece.row_bytes, part});
        }
      }
      placement.copy_to_replicas(slabs, begin, end);
      begin = end;
    }
    const ShardedArray wanted = ShardedArray::from_host(devices, array, whole);
    for (std::size_t p = 0; p < slabs.size(); ++p) {
      EXPECT_EQ(std::memcmp(slabs[p].data, wanted.shard(static_cast<std::int64_t>(p)).data,
                            placement.bytes_at()[p]),
                0)
          << p;
    }
  }
}

// Every element of every block, as the array of widened tiles has it.
TEST(BatchArray, WidensTheTilesByTheirHalos) {
  RandomShardings random(12);
  int with_halo = 0;
  for (int i = 0; i < 300; ++i) {
    const std::size_t rank = static_cast<std::size_t>(random.draw(2, 4));
    const Sharding sharding = random.sharding(rank);
    Shape shape{random.draw(1, 5)};
    std::vector<Halo> halo;
    Shape available;
    for (std::size_t dim = 1; dim < rank; ++dim) {
      shape.push_back(sharding.tiles(dim) * random.draw(1, 3));
      available.push_back(shape[dim] - (random.draw(0, 3) == 0 ? 1 : 0));
      halo.push_back({random.draw(0, 2), random.draw(0, 4)});
    }
    SCOPED_TRACE(sharding.to_string() + " " + to_string(shape));
    const BatchArray array({DType::u8, shape, available, halo}, sharding,
                           [](std::int64_t) { return true; });
    for (std::size_t dim = 1; dim < rank; ++dim) {
      const auto [low, high] = halo[dim - 1];
      EXPECT_EQ(array.shape()[dim], shape[dim] + sharding.tiles(dim) * (low + high));
      with_halo += low + high > 0 ? 1 : 0;
    }
    for (std::int64_t p = 0; p < sharding.mesh().size(); ++p) {
      const Box narrow = sharding.box_at(p, shape);
      const BatchArray::Part part = array.part(p);
      EXPECT_EQ(part.box, sharding.box_at(p, array.shape()));
      for (std::size_t dim = 1; dim < rank; ++dim) {
        const std::int64_t wanted = narrow.begin(dim) - halo[dim - 1].low;
        const std::int64_t begin = std::max<std::int64_t>(wanted, 0);
        const std::int64_t end = std::min(narrow.end(dim) + halo[dim - 1].high, available[dim - 1]);
        EXPECT_EQ(part.box.extent(dim),
                  narrow.extent(dim) + halo[dim - 1].low + halo[dim - 1].high);
        if (begin >= end) {
          EXPECT_EQ(part.batch.extent(dim), 0);
          continue;
        }
        EXPECT_EQ(part.batch.begin(dim), begin);
        EXPECT_EQ(part.batch.end(dim), end);
        EXPECT_EQ(part.at[dim], begin - wanted);
      }
    }
  }
  EXPECT_GT(with_halo, 100);
}

TEST(BatchArray, RejectsHalosThatDoNotFit) {
  const struct {
    const char* name;
    const char* spec;
    std::vector<Halo> halo;
    const char* message;
  } cases[] = {{"too few", "-,x,-", {{1, 1}}, "got 1 halos, needed is one for each of the 2 dims"},
               {"negative", "-,x,-", {{1, -1}, {}}, "the halo of record dim 0 is 1 and -1"},
               {"wide", "-,x,-", {{INT64_MAX, 1}, {}}, "too wide"},
               {"wide in all", "-,x,-", {{INT64_MAX / 3, 1}, {}}, "too wide"},
               {"uneven",
                "-,-,x",
                {{}, {0, 1}},
                "record dim 1 of extent 6 has a halo and is cut "
                "into 4 tiles, needed are even tiles"}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                           [&] {
                             BatchArray({DType::u8, {3, 8, 6}, {8, 6}, c.halo},
                                        Sharding(Mesh::parse("x=4"), PartitionSpec::parse(c.spec)),
                                        [](std::int64_t) { return true; });
                           }),
                HasSubstr(c.message));
  }
}

}  // namespace
}  // namespace shardwise::detail
