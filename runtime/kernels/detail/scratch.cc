#include "shardwise/runtime/kernels/detail/scratch.h"

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include "shardwise/runtime/kernels/detail/tile_functions.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {
namespace {

constexpr std::align_val_t kScratchAlignment{64};

/// The memory that a thread keeps. A kernel holds a few blocks at once; surplus ones are freed.
class SpareMemory {
 public:
  struct Block {
    std::byte* data = nullptr;
    std::size_t bytes = 0;
  };

  SpareMemory() = default;
  SpareMemory(const SpareMemory&) = delete;
  SpareMemory& operator=(const SpareMemory&) = delete;
  ~SpareMemory() {
    for (const Block& block : blocks_) free(block);
  }

  /// The smallest block that is large enough, or a new one in place of the largest.
  Block take(std::size_t bytes) {
    Block* best = nullptr;
    for (Block& block : blocks_) {
      if (block.bytes >= bytes && (best == nullptr || block.bytes < best->bytes)) best = &block;
    }
    if (best != nullptr) return std::exchange(*best, {});
    free(std::exchange(largest(), {}));
    return {static_cast<std::byte*>(::operator new(bytes, kScratchAlignment)), bytes};
  }

  void give(const Block& returned) {
    Block& smallest = *std::min_element(blocks_.begin(), blocks_.end(), less);
    free(smallest.bytes < returned.bytes ? std::exchange(smallest, returned) : returned);
  }

 private:
  static bool less(const Block& a, const Block& b) { return a.bytes < b.bytes; }
  static void free(const Block& block) {
    if (block.data != nullptr) ::operator delete(block.data, kScratchAlignment);
  }
  Block& largest() { return *std::max_element(blocks_.begin(), blocks_.end(), less); }

  std::array<Block, 6> blocks_;
};

SpareMemory& spare_memory() {
  thread_local SpareMemory memory;
  return memory;
}

std::size_t bytes_as_f32(const Box& box) { return num_bytes(box.shape(), sizeof(float)); }

}  // namespace

Scratch::Scratch(std::size_t bytes) {
  // A power of two, so that kernels on shards of several sizes share it.
  std::size_t rounded = 4096;
  while (rounded < bytes) rounded *= 2;
  const SpareMemory::Block block = spare_memory().take(rounded);
  data_ = block.data;
  bytes_ = block.bytes;
}

Scratch::~Scratch() { spare_memory().give({data_, bytes_}); }

Widened::Widened(const ConstShardView& half)
    : memory_(bytes_as_f32(half.box)), view_{memory_.data(), DType::f32, half.box} {
  const Source source{half.data, 1};
  const TileFunction widen = convert_function(half.dtype, DType::f32);
  widen(&source, memory_.data(), as_size(half.box.num_elements()));
}

Unrounded::Unrounded(const ShardView& half)
    : memory_(bytes_as_f32(half.box)), half_(half), view_{memory_.data(), DType::f32, half.box} {}

void Unrounded::round() const {
  const Source source{view_.data, 1};
  const TileFunction narrow = convert_function(DType::f32, half_.dtype);
  narrow(&source, half_.data, as_size(half_.box.num_elements()));
}

}  // namespace shardwise::detail
