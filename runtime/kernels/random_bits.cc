#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>

#include "shardwise/runtime/kernels/detail/philox.h"
#include "shardwise/runtime/kernels/index.h"
#include "shardwise/shard/box_copy.h"

namespace shardwise {
namespace {

std::uint32_t low_word(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
std::uint32_t high_word(std::uint64_t value) { return static_cast<std::uint32_t>(value >> 32); }

/// Words `begin` to `begin + count` of the whole tensor's.
void random_words(std::uint64_t key, std::uint64_t begin, std::uint64_t count, std::uint32_t* out) {
  const std::array<std::uint32_t, 2> key_words{low_word(key), high_word(key)};
  const auto block = [&](std::uint64_t counter) {
    return detail::philox({low_word(counter), high_word(counter), 0, 0}, key_words);
  };
  const std::uint64_t end = begin + count;
  for (; begin != end && begin % 4 != 0; ++begin) *out++ = block(begin / 4)[begin % 4];
  for (; end - begin >= 4; begin += 4, out += 4) {
    const std::array<std::uint32_t, 4> words = block(begin / 4);
    std::memcpy(out, words.data(), sizeof(words));
  }
  if (begin != end) std::copy_n(block(begin / 4).begin(), end - begin, out);
}

}  // namespace

void random_bits(std::uint64_t key, const Shape& shape, const ShardView& out) {
  assert(out.dtype == DType::u32);
  std::uint32_t* const words = reinterpret_cast<std::uint32_t*>(out.data);
  const RunWalk walk = walk_runs(out.box, Box::whole(shape), out.box);
  for_each_run(walk, [&](std::int64_t whole, std::int64_t own, std::int64_t count) {
    random_words(key, static_cast<std::uint64_t>(whole), static_cast<std::uint64_t>(count),
                 words + own);
  });
}

}  // namespace shardwise
