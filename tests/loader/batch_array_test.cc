#include "shardwise/loader/detail/engine/batch_array.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "shardwise/runtime/sharded_array.h"
#include "testing/random_shardings.h"

namespace shardwise::detail {
namespace {

BatchArray batch_array(const ArraySpec& array) {
  Shape available;
  for (std::size_t dim = 1; dim < array.shape.size(); ++dim) available.push_back(array.shape[dim]);
  return BatchArray({array.dtype, array.shape, available}, array.sharding,
                    [](std::int64_t) { return true; });
}

std::vector<OwnedBytes> allocate_slabs(const BatchArray& array,
                                       std::vector<std::vector<std::byte>>& memory) {
  std::vector<OwnedBytes> slabs;
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

    const BatchArray placement = batch_array(array);
    std::vector<std::vector<std::byte>> memory;
    const std::vector<OwnedBytes> slabs = allocate_slabs(placement, memory);
    for (std::int64_t begin = 0; begin < shape[0];) {
      const std::int64_t end = random.draw(begin + 1, shape[0]);
      for (const BatchArray::Piece& piece : placement.pieces()) {
        EXPECT_TRUE(piece.is_direct);
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

}  // namespace
}  // namespace shardwise::detail
