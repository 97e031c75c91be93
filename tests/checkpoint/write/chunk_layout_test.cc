#include "shardwise/checkpoint/detail/write/chunks/chunk_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "shardwise/shard/host/page_memory.h"
#include "testing/change_piece.h"

namespace shardwise::detail {
namespace {

TEST(ChunkShape, CutsEvenlyIntoAboutAMebibyte) {
  struct Case {
    const char* name;
    Shape piece;
    std::size_t element_bytes;
    Shape chunk;
  };
  const Case cases[] = {
      {"small: one chunk", {100, 200}, 4, {100, 200}},
      {"exactly a chunk", {512, 512}, 4, {512, 512}},
      {"square: rows and columns, runs of 8 KiB", {8192, 8192}, 4, {128, 2048}},
      {"narrow: rows only", {1'000'000, 3}, 4, {83334, 3}},
      {"wide: columns too", {4, 1 << 20}, 4, {1, 1 << 18}},
      {"one dim, no sliver", {1'000'001}, 8, {125'001}},
      {"bytes", {3, 5 << 20}, 1, {1, 1 << 20}},
      {"all dims but short runs", {64, 3, 224, 224}, 4, {16, 1, 56, 224}},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_EQ(to_string(chunk_shape(c.piece, c.element_bytes)), to_string(c.chunk));
  }
}

TEST(ChunkShape, HoldsItsPromisesForRandomPieces) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 3000; ++i) {
    const std::size_t element_bytes = std::size_t{1} << (random() % 4);
    Shape piece;
    std::int64_t room = std::int64_t{1} << (random() % 40);
    for (std::size_t rank = random() % 6; rank > 0; --rank) {
      piece.push_back(1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(room)));
      room = std::max<std::int64_t>(room / piece[piece.size() - 1], 1);
    }
    SCOPED_TRACE(to_string(piece) + " of " + std::to_string(element_bytes));
    const Shape chunk = chunk_shape(piece, element_bytes);
    ASSERT_EQ(chunk.size(), piece.size());
    const std::size_t bytes = num_bytes(chunk, element_bytes);
    EXPECT_LE(bytes, kChunkBytes);
    if (num_bytes(piece, element_bytes) <= kChunkBytes) {
      EXPECT_EQ(chunk, piece);
      continue;
    }
    EXPECT_GT(bytes, kChunkBytes / 5) << to_string(chunk);
    for (std::size_t d = 0; d < piece.size(); ++d) {
      ASSERT_GE(chunk[d], 1);
      const std::int64_t count = (piece[d] + chunk[d] - 1) / chunk[d];
      EXPECT_EQ(chunk[d], (piece[d] + count - 1) / count) << "dim " << d << " is cut evenly";
    }
  }
}

/// Tensors of one piece each, chunk by chunk as given, all in file 0.
struct Planned {
  Shape shape, chunk;
  DType dtype = DType::u8;
  StoredCodec codec = StoredCodec::none;
};

std::vector<TensorEntry> tensors_of(std::span<const Planned> planned) {
  std::vector<TensorEntry> tensors;
  std::int64_t next = 0;
  for (const Planned& one : planned) {
    TensorEntry& tensor = tensors.emplace_back();
    tensor.dtype = one.dtype;
    tensor.shape = one.shape;
    PieceEntry piece;
    piece.box = Box::whole(one.shape);
    piece.chunk = one.chunk;
    piece.codec = one.codec;
    piece.first_chunk = next;
    next += num_chunks(piece);
    tensor.pieces.push_back(piece);
  }
  return tensors;
}

TEST(ChunkLayout, SaysWhichBoxOfWhichTensorAChunkIs) {
  const Planned planned[] = {{{5, 6}, {2, 6}, DType::f32}, {{}, {}, DType::f64}, {{7}, {4}}};
  const auto tensors = tensors_of(planned);
  const ChunkLayout layout = ChunkLayout::of_files(tensors, 1).front();
  ASSERT_EQ(layout.num_chunks(), 6);
  EXPECT_EQ(layout.logical_bytes(), 5u * 6 * 4 + 8 + 7);
  const struct {
    std::size_t tensor;
    Box box;
    std::size_t bytes, held_bytes;
  } chunks[] = {{0, Box({0, 0}, {2, 6}), 48, 48}, {0, Box({2, 0}, {4, 6}), 48, 48},
                {0, Box({4, 0}, {5, 6}), 48, 24}, {1, Box(), 8, 8},
                {2, Box({0}, {4}), 4, 4},         {2, Box({4}, {7}), 4, 3}};
  for (std::int64_t number = 0; number < 6; ++number) {
    SCOPED_TRACE(number);
    const FileChunk chunk = layout.chunk(number);
    const auto& expected = chunks[number];
    EXPECT_EQ(chunk.tensor, expected.tensor);
    EXPECT_EQ(chunk.piece, tensors[expected.tensor].pieces[0]);
    EXPECT_EQ(chunk.box, expected.box);
    EXPECT_EQ(chunk.bytes, expected.bytes);
    EXPECT_EQ(chunk.held_bytes(), expected.held_bytes);
  }
}

TEST(ChunkLayout, OfAFileHasThePiecesOfThatFile) {
  const Planned planned[] = {{{8}, {2}}, {{9}, {9}}, {{3}, {1}}};
  auto tensors = tensors_of(planned);
  change_piece(tensors[1], 0, [](PieceEntry& piece) {
    piece.file = 1;
    piece.first_chunk = 0;
  });
  change_piece(tensors[2], 0, [](PieceEntry& piece) { piece.first_chunk = 4; });
  const auto layouts = ChunkLayout::of_files(tensors, 3);
  EXPECT_EQ(layouts[0].num_chunks(), 7);
  EXPECT_EQ(layouts[0].chunk(4).tensor, 2u);
  EXPECT_EQ(layouts[1].num_chunks(), 1);
  EXPECT_EQ(layouts[1].chunk(0).tensor, 1u);
  EXPECT_EQ(layouts[2].num_chunks(), 0);
  EXPECT_EQ(layouts[2].most_bytes(), 0u);
  EXPECT_TRUE(layouts[2].slabs(kChunkBytes).empty());
}

// Small chunks are packed; one that is not small has a group of its own.
TEST(ChunkLayout, PacksSmallChunksIntoGroupsOfWholePages) {
  constexpr std::int64_t kMebi = 1 << 20;
  const Planned planned[] = {
      {{100}, {100}}, {{30}, {10}}, {{kMebi}, {kMebi}}, {{64}, {64}}, {{kMebi - 64}, {kMebi - 64}},
      {{1}, {1}}};
  const auto tensors = tensors_of(planned);
  const ChunkLayout layout = ChunkLayout::of_files(tensors, 1).front();
  ASSERT_EQ(layout.num_chunks(), 8);
  std::vector<std::int64_t> begins;
  for (std::int64_t number = 0; number < 8; ++number) {
    if (layout.begins_group(number)) begins.push_back(number);
  }
  EXPECT_EQ(begins, (std::vector<std::int64_t>{0, 4, 5, 7}));
  EXPECT_EQ(layout.most_bytes(), 2 * kPageBytes + 2 * kChunkBytes);
  // 100 + 30 + 1 MiB + 64 + (1 MiB - 64) + 1 bytes, in whole pages.
  EXPECT_EQ(layout.least_bytes(), 2 * kChunkBytes + kPageBytes);
}

TEST(ChunkLayout, OnlyWhatMayBeCompressedMayTakeLess) {
  const Planned planned[] = {{{5000}, {2500}, DType::u8, StoredCodec::zstd}, {{3}, {3}}};
  const auto tensors = tensors_of(planned);
  const ChunkLayout layout = ChunkLayout::of_files(tensors, 1).front();
  EXPECT_EQ(layout.least_bytes(), kPageBytes);
  EXPECT_EQ(layout.most_bytes(), 2 * kPageBytes);
}

// Whatever the buffer: slabs are whole groups, hold all chunks once, and no more than fits.
TEST(ChunkLayout, SlabsAreWholeGroupsThatFitTheBuffer) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<Planned> planned;
    for (std::size_t t = random() % 40; t > 0; --t) {
      const auto extent = 1 + static_cast<std::int64_t>(random() % (std::uint64_t{3} << 20));
      const std::int64_t chunk =
          std::min<std::int64_t>(extent, 1 + static_cast<std::int64_t>(random() % kChunkBytes));
      planned.push_back({{extent}, {std::max(chunk, extent / 50 + 1)}});
    }
    const auto tensors = tensors_of(planned);
    const ChunkLayout layout = ChunkLayout::of_files(tensors, 1).front();
    const std::size_t buffer = kChunkBytes * (1 + random() % 8);
    std::int64_t next = 0;
    std::size_t before = 0;
    const std::vector<Slab> slabs = layout.slabs(buffer);
    for (std::size_t s = 0; s < slabs.size(); ++s) {
      const Slab& slab = slabs[s];
      ASSERT_EQ(slab.first, next);
      ASSERT_LT(slab.first, slab.end);
      EXPECT_TRUE(layout.begins_group(slab.first));
      EXPECT_GE(slab.bytes_before, before);
      const std::size_t end =
          s + 1 < slabs.size() ? slabs[s + 1].bytes_before : layout.most_bytes();
      EXPECT_EQ(slab.bytes_before % kPageBytes, 0u);
      EXPECT_LE(end - slab.bytes_before, buffer);
      std::size_t needed = 0;
      for (std::int64_t number = slab.first; number < slab.end; ++number) {
        const std::size_t to = layout.begins_group(number) ? kPageBytes : ChunkLayout::kAlignment;
        needed = (needed + to - 1) / to * to + layout.chunk(number).bytes;
      }
      EXPECT_EQ((needed + kPageBytes - 1) / kPageBytes * kPageBytes, end - slab.bytes_before);
      next = slab.end;
      before = slab.bytes_before;
    }
    EXPECT_EQ(next, layout.num_chunks());
  }
}

}  // namespace
}  // namespace shardwise::detail
