#include <gtest/gtest.h>

#include <algorithm>

#include "shardwise/checkpoint/reader.h"
#include "testing/random_boxes.h"
#include "testing/random_checkpoint.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

void expect_shards(const ShardedArray& array, const HandMadeTensor& tensor) {
  for (std::int64_t p = 0; p < array.sharding().mesh().size(); ++p) {
    const ConstBoxView shard = array.shard(p);
    const auto expected = elements_of(tensor, shard.box);
    ASSERT_TRUE(std::equal(expected.begin(), expected.end(), shard.data))
        << tensor.name << " at position " << p << " " << to_string(shard.box);
  }
}

void expect_boxes(const CheckpointReader& reader, const HandMadeTensor& tensor,
                  RandomCheckpoints& random) {
  for (int i = 0; i < 5; ++i) {
    const Box box = random_box(Box::whole(tensor.shape), random);
    SCOPED_TRACE(to_string(box));
    const auto expected = elements_of(tensor, box);
    std::vector<std::byte> out(expected.size());
    reader.read(tensor.name, box, out);
    ASSERT_EQ(out, expected);
  }
}

// Whatever the writer's pieces and chunks and the reader's mesh are, every device gets its box.
TEST(ReaderRandom, RestoresOntoAnyMeshWhatGatheringWouldGive) {
  RandomCheckpoints random(11);
  Devices devices(48, {.threads = 2});
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    std::vector<HandMadeTensor> tensors;
    for (std::int64_t t = random.draw(1, 4); t > 0; --t) {
      tensors.push_back(random.tensor("t" + std::to_string(t)));
    }
    const TempDir dir;
    const auto path = HandMadeCheckpoint(tensors, random.draw(1, 3)).write(dir.path());
    // From a budget that holds no more than one chunk to one that holds all.
    const std::size_t budget = random.draw(0, 1) == 0 ? 1 : std::size_t{1} << 20;
    const CheckpointReader reader(path, {.memory_budget_bytes = budget, .threads = 2});

    std::vector<TensorRequest> requests;
    std::vector<const HandMadeTensor*> requested;
    for (const HandMadeTensor& tensor : tensors) {
      for (std::int64_t times = random.draw(0, 2); times > 0; --times) {
        requests.push_back(
            {tensor.name, {tensor.dtype, tensor.shape, random.sharding(tensor.shape.size())}});
        requested.push_back(&tensor);
      }
    }
    const auto arrays = reader.restore(devices, requests);
    ASSERT_EQ(arrays.size(), requests.size());
    for (std::size_t i = 0; i < arrays.size(); ++i) expect_shards(arrays[i], *requested[i]);
  }
}

TEST(ReaderRandom, ReadsAnyBox) {
  RandomCheckpoints random(12);
  for (int round = 0; round < 300; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const HandMadeTensor tensor = random.tensor("t");
    const TempDir dir;
    const auto path = HandMadeCheckpoint({tensor}, random.draw(1, 2)).write(dir.path());
    const CheckpointReader reader(path, {.threads = 2});
    expect_boxes(reader, tensor, random);
  }
}

/// Rows of several KiB in pieces and chunks of any extents, as large as chunks are that are copied
/// part by part as they are read.
HandMadeTensor wide_tensor(RandomCheckpoints& random) {
  const Shape shape{random.draw(40, 200), random.draw(1000, 4000)};
  HandMadeTensor tensor{.name = "w",
                        .dtype = DType::f32,
                        .shape = shape,
                        .data = scattered_values(DType::f32, shape)};
  const std::int64_t row = random.draw(1, shape[0] - 1), column = random.draw(1, shape[1] - 1);
  tensor.pieces = {Box({0, 0}, {row, column}), Box({0, column}, {row, shape[1]}),
                   Box({row, 0}, shape)};
  tensor.chunk = {random.draw(20, shape[0]), random.draw(700, shape[1])};
  tensor.codec = random.draw(0, 2) == 0 ? detail::StoredCodec::zstd : detail::StoredCodec::none;
  return tensor;
}

// Parts of large chunks, to one target and to several, next to each other and over each other;
// with the files in the page cache and out of it.
TEST(ReaderRandom, ReadsPartsOfLargeChunks) {
  RandomCheckpoints random(13);
  Devices devices(48, {.threads = 2});
  for (int round = 0; round < 60; ++round) {
    const HandMadeTensor tensor = wide_tensor(random);
    SCOPED_TRACE(testing::Message() << "round " << round << " " << to_string(tensor.shape));
    const TempDir dir;
    const auto path = HandMadeCheckpoint({tensor}, random.draw(1, 2)).write(dir.path());
    const CheckpointReader reader(path, {.threads = 2, .read_once = round % 2 == 0});
    const auto arrays = reader.restore(
        devices,
        std::vector<TensorRequest>{{"w", {tensor.dtype, tensor.shape, random.sharding(2)}},
                                   {"w", {tensor.dtype, tensor.shape, random.sharding(2)}}});
    for (const ShardedArray& array : arrays) expect_shards(array, tensor);
    expect_boxes(reader, tensor, random);
  }
}

}  // namespace
}  // namespace shardwise
