#include <algorithm>
#include <array>
#include <cassert>

#include "shardwise/runtime/kernels/detail/index.h"
#include "shardwise/runtime/kernels/detail/philox_blocks.h"
#include "shardwise/shard/box_copy.h"

namespace shardwise {
namespace {

/// Words `begin` to `end` of the whole tensor's.
void random_words(std::uint64_t key, std::uint64_t begin, std::uint64_t end, std::uint32_t* out) {
  const auto part_of_block = [&](std::uint64_t part_end) {
    std::array<std::uint32_t, 4> block;
    detail::philox_blocks(key, begin / 4, 1, block.data());
    for (; begin != part_end; ++begin) *out++ = block[begin % 4];
  };
  if (begin % 4 != 0) part_of_block(std::min(end, begin / 4 * 4 + 4));
  const std::uint64_t blocks = (end - begin) / 4;
  detail::philox_blocks(key, begin / 4, blocks, out);
  begin += 4 * blocks;
  out += 4 * blocks;
  if (begin != end) part_of_block(end);
}

}  // namespace

void random_bits(std::uint64_t key, const Shape& shape, const ShardView& out) {
  assert(out.dtype == DType::u32);
  std::uint32_t* const words = reinterpret_cast<std::uint32_t*>(out.data);
  const RunWalk walk = walk_runs(out.box, Box::whole(shape), out.box);
  for_each_run(walk, [&](std::int64_t whole, std::int64_t own, std::int64_t count) {
    random_words(key, static_cast<std::uint64_t>(whole), static_cast<std::uint64_t>(whole + count),
                 words + own);
  });
}

}  // namespace shardwise
