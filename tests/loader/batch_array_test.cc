#include "shardwise/loader/detail/batch_array.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "testing/errors.h"
#include "testing/random_shardings.h"

namespace shardwise::detail {
namespace {

using ::testing::HasSubstr;

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

    const BatchArray placement(devices, array, "x");
    const auto buffers = placement.allocate();
    std::size_t bytes = 0;
    for (const auto& buffer : buffers) bytes += buffer->size_bytes();
    EXPECT_EQ(placement.bytes(), bytes);
    for (std::int64_t begin = 0; begin < shape[0];) {
      const std::int64_t end = random.draw(begin + 1, shape[0]);
      for (BatchArray::Target& target : placement.targets(buffers, begin, end)) {
        for (; target.next_row < target.end_row; target.advance(1)) {
          EXPECT_TRUE(begin <= target.next_row && target.next_row < end);
          // The record seen as a batch of one row.
          Index from = batch.begin(), to = batch.end();
          from[0] = target.next_row;
          to[0] = target.next_row + 1;
          const Box row(from, to);
          for (std::size_t dim = 1; dim < rank; ++dim) {
            from[dim] = target.record.box.begin(dim - 1);
            to[dim] = target.record.box.end(dim - 1);
          }
          const Box part(from, to);
          copy_box(part, 2,
                   {whole.data() + static_cast<std::size_t>(target.next_row) * row_bytes, row},
                   {target.record.data, part});
        }
        EXPECT_EQ(target.rest_bytes(), 0u);
      }
      placement.copy_to_replicas(buffers, begin, end);
      begin = end;
    }
    const ShardedArray wanted = ShardedArray::from_host(devices, array, whole);
    for (std::size_t p = 0; p < buffers.size(); ++p) {
      EXPECT_EQ(std::memcmp(buffers[p]->data(), wanted.shard(static_cast<std::int64_t>(p)).data,
                            buffers[p]->size_bytes()),
                0)
          << p;
    }
  }
}

TEST(BatchArray, NamesTheDeviceThatIsMissing) {
  Devices devices(4, {.threads = 1});
  EXPECT_THAT(
      message_of(ErrorCode::not_found,
                 [&] {
                   BatchArray(devices, {DType::u8, {8}, Sharding(Mesh::line(5), {{}})}, "x");
                 }),
      HasSubstr("4"));
}

TEST(BatchArray, ChargesTheLoadersMemory) {
  Devices devices(2, {.capacity_bytes = 100, .threads = 1});
  const BatchArray placement(devices, {DType::f32, {16}, Sharding(Mesh::line(2), {{"devices"}})},
                             "batch image");
  auto buffers = placement.allocate();
  const auto loader = static_cast<std::size_t>(MemoryKind::loader);
  EXPECT_EQ(devices.at(1).memory().in_use_by_kind[loader], 32u);
  EXPECT_THAT(message_of(ErrorCode::resource_exhausted,
                         [&] {
                           const auto second = placement.allocate();
                           const auto third = placement.allocate();
                           placement.allocate();
                         }),
              HasSubstr("batch image"));
  EXPECT_EQ(devices.at(1).memory().in_use_bytes, 32u);
  buffers.clear();
  EXPECT_EQ(devices.at(1).memory().in_use_bytes, 0u);
}

}  // namespace
}  // namespace shardwise::detail
