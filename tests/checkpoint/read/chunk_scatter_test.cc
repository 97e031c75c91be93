#include "shardwise/checkpoint/detail/read/chunk_scatter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "shardwise/shard/box_copy.h"

namespace shardwise::detail {
namespace {

std::mt19937 random_numbers(3);

std::int64_t draw(std::int64_t least, std::int64_t most) {
  return std::uniform_int_distribution<std::int64_t>(least, most)(random_numbers);
}

std::vector<std::byte> bytes_to_scatter(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random_numbers());
  return bytes;
}

/// A checkpoint of one tensor in one piece, whose bytes nobody has written.
StoredCheckpoint checkpoint_of(DType dtype, const Shape& shape, const Shape& chunk) {
  StoredCheckpoint checkpoint;
  TensorEntry& tensor = checkpoint.manifest.tensors.emplace_back();
  tensor.dtype = dtype;
  tensor.shape = shape;
  tensor.pieces = {{.box = Box::whole(shape), .layout = Layout::chunked, .chunk = chunk}};
  return checkpoint;
}

Box random_box_over(const Box& held, const Shape& shape) {
  Box box;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    const std::int64_t begin = draw(0, held.end(d) - 1);
    box.push_back(begin, draw(std::max(begin, held.begin(d)) + 1, shape[d]));
  }
  return box;
}

/// Bytes that no chunk writes stay as they are: each target is compared with an independent copy of
/// the shared box into the same memory.
void expect_scattered(const StoredCheckpoint& checkpoint, const ChunkId& id, CopyBy copy_by,
                      std::size_t most_window) {
  const TensorEntry& tensor = checkpoint.tensor(id);
  const std::size_t element_bytes = size_bytes(tensor.dtype);
  const Box held = checkpoint.box(id);
  const std::vector<std::byte> chunk = bytes_to_scatter(checkpoint.decoded_bytes(id));

  const auto count = static_cast<std::size_t>(draw(1, 4));
  std::vector<Box> boxes;
  std::vector<std::vector<std::byte>> memory, expected;
  for (std::size_t i = 0; i < count; ++i) {
    boxes.push_back(random_box_over(held, tensor.shape));
    const std::size_t bytes = num_bytes(boxes[i].shape(), element_bytes);
    for (int place = 0; place < 2; ++place) {
      memory.push_back(bytes_to_scatter(bytes));
      expected.push_back(memory.back());
      const Box shared = intersect(held, boxes[i]);
      copy_box(relative_to(shared, held.begin()), element_bytes,
               {chunk.data(), Box::whole(checkpoint.piece(id).chunk)},
               {expected.back().data(), relative_to(boxes[i], held.begin())});
    }
  }
  std::vector<std::byte*> places;
  for (std::vector<std::byte>& bytes : memory) places.push_back(bytes.data());
  std::vector<ReadTarget> targets;
  for (std::size_t i = 0; i < count; ++i) {
    targets.push_back({0, &boxes[i], std::span(places).subspan(2 * i, 2)});
  }
  std::vector<std::size_t> numbers(count);
  std::iota(numbers.begin(), numbers.end(), std::size_t{0});
  {
    ChunkScatter scatter(checkpoint, id, targets, numbers, copy_by);
    for (std::size_t at = 0; at < chunk.size();) {
      const auto size = static_cast<std::size_t>(
          draw(1, static_cast<std::int64_t>(std::min(most_window, chunk.size() - at))));
      scatter.put(std::span(chunk).subspan(at, size));
      at += size;
    }
    EXPECT_EQ(scatter.hash(), hash64(chunk.data(), chunk.size()));
  }
  EXPECT_TRUE(memory == expected);
}

// Chunks have any rank, and some reach over the edge; runs have every length, also over the borders
// of windows.
TEST(ChunkScatter, PutsEachByteWhereItBelongsAndHashesThemAll) {
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(testing::Message() << "round " << round);
    const auto rank = static_cast<std::size_t>(draw(0, 4));
    Shape shape, chunk;
    for (std::size_t d = 0; d < rank; ++d) {
      shape.push_back(draw(1, 9));
      chunk.push_back(draw(1, shape[d]));
    }
    const DType dtypes[] = {DType::u8, DType::bf16, DType::f32, DType::f64};
    const StoredCheckpoint checkpoint = checkpoint_of(dtypes[draw(0, 3)], shape, chunk);
    const std::int64_t chunks = num_chunks(checkpoint.manifest.tensors[0].pieces[0]);
    const ChunkId id{0, 0, draw(0, chunks - 1)};
    for (const std::size_t most_window : {std::size_t{7}, std::size_t{100}, SIZE_MAX / 2}) {
      expect_scattered(checkpoint, id, CopyBy::cache, most_window);
    }
  }
}

TEST(ChunkScatter, CopiesLongRunsPastTheCachesToo) {
  for (int round = 0; round < 40; ++round) {
    const StoredCheckpoint checkpoint = checkpoint_of(DType::f32, {40, 3000}, {16, 1500});
    expect_scattered(checkpoint, {0, 0, draw(0, 5)}, CopyBy::stream, 50'000);
  }
}

// In windows of their own size, the last one smaller; of elements that do not divide it, too.
TEST(ChunkScatter, UnshufflesInTheOrderOfTheElements) {
  for (const std::size_t element_bytes : {1u, 2u, 3u, 4u, 8u, 16u}) {
    const std::vector<std::byte> elements = bytes_to_scatter(element_bytes * 10'000);
    std::vector<std::byte> shuffled(elements.size()), found;
    shuffle(elements, element_bytes, shuffled);
    for_each_unshuffled(shuffled, element_bytes, [&](std::span<const std::byte> window) {
      EXPECT_LE(window.size(), std::size_t{16} << 10);
      found.insert(found.end(), window.begin(), window.end());
    });
    EXPECT_TRUE(found == elements) << element_bytes;
  }
}

}  // namespace
}  // namespace shardwise::detail
