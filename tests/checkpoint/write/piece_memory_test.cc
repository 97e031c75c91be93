// The heap memory of a checkpoint's pieces and chunks, by counted allocations. A program of its
// own: it replaces operator new.

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/format/piece_list.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "testing/temp_dir.h"

namespace {

std::atomic<std::int64_t> held{0}, peak{0};

void count(std::int64_t bytes) {
  const std::int64_t now = held += bytes;
  for (std::int64_t before = peak; now > before && !peak.compare_exchange_weak(before, now);) {
  }
}

}  // namespace

void* operator new(std::size_t bytes) {
  void* const memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  count(static_cast<std::int64_t>(::malloc_usable_size(memory)));
  return memory;
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
void operator delete(void* memory) noexcept {
  count(-static_cast<std::int64_t>(::malloc_usable_size(memory)));
  std::free(memory);
}
void operator delete[](void* memory) noexcept { operator delete(memory); }
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
void operator delete[](void* memory, std::size_t) noexcept { operator delete(memory); }

namespace shardwise {
namespace {

/// The growth of the allocated memory since its construction.
class Growth {
 public:
  Growth() : before_(held) { peak = before_; }

  std::int64_t held_bytes() const { return held - before_; }
  std::int64_t peak_bytes() const { return peak - before_; }

 private:
  std::int64_t before_;
};

TEST(PieceMemory, APieceOfTwoDimsTakes80Bytes) {
  constexpr std::int64_t kPieces = 10'000;
  const Growth growth;
  detail::PieceList list;
  list.reserve(kPieces, 2);
  for (std::int64_t i = 0; i < kPieces; ++i) {
    list.push_back({.box = Box({i, 0}, {i + 1, 8}), .chunk = {1, 8}});
  }
  EXPECT_EQ(growth.held_bytes() / kPieces, 80);
  EXPECT_EQ(growth.peak_bytes() / kPieces, 80);
}

/// Saves tensors of equal pieces, each of this number of KiB.
struct Model {
  std::int64_t tensors, pieces, kib;
};

std::vector<TensorSource> sources_of(const Model& model) {
  const Sharding by_rows(Mesh::line(model.pieces), PartitionSpec::parse("0,-"));
  const ArraySpec spec{DType::u8, {model.pieces * model.kib, 1024}, by_rows};
  std::vector<TensorSource> sources;
  for (std::int64_t t = 0; t < model.tensors; ++t) {
    sources.push_back(callback_tensor(
        "w" + std::to_string(t), spec,
        [](const Box&, std::span<std::byte> out) { std::memset(out.data(), 1, out.size()); }));
  }
  return sources;
}

/// The peak of a save whose buffers are there from an earlier one, and a reader's memory.
struct Heap {
  std::int64_t save_bytes, reader_bytes;
};

Heap heap_of(const Model& model) {
  const TempDir dir;
  CheckpointManager manager(dir.path(), {.write = {.threads = 1}});
  const std::vector<TensorSource> sources = sources_of(model);
  const SaveOptions options{.codec = Codec::zstd, .memory_budget_bytes = std::size_t{8} << 20};
  manager.save(1, sources, options);
  // On a machine that is busy a save may need one more buffer than all before it.
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (const int step : {2, 3, 4}) {
    const Growth save;
    manager.save(step, sources, options);
    least = std::min(least, save.peak_bytes());
  }
  const Growth read;
  const CheckpointReader reader(dir / "step-00000002");
  return {least, read.held_bytes()};
}

// The limit that SaveOptions::memory_budget_bytes states for the description of tensors.
TEST(PieceMemory, ASaveTakes2900BytesAPieceAtMost) {
  const std::pair<Model, std::int64_t> models[] = {
      {{1, 4000, 64}, 150}, {{500, 8, 64}, 300}, {{4000, 1, 64}, 1000}};
  for (const auto& [model, reader_bytes] : models) {
    SCOPED_TRACE(model.pieces);
    const Heap heap = heap_of(model);
    EXPECT_LE(heap.save_bytes / 4000, 2900);
    EXPECT_LE(heap.reader_bytes / 4000, reader_bytes);
  }
}

TEST(PieceMemory, ASaveTakes100BytesAChunk) {
  const Heap few = heap_of({1, 4, std::int64_t{16} << 10});
  const Heap many = heap_of({1, 4, std::int64_t{256} << 10});
  constexpr std::int64_t kMoreChunks = 4 * 240;
  EXPECT_LE((many.save_bytes - few.save_bytes) / kMoreChunks, 100);
  EXPECT_LE((many.reader_bytes - few.reader_bytes) / kMoreChunks, 50);
}

}  // namespace
}  // namespace shardwise
