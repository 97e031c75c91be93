#include "shardwise/runtime/kernels/detail/philox_blocks.h"

#include <array>
#include <cstdint>
#include <cstring>

#include "shardwise/shard/host/random.h"

// Highway compiles this file once per SIMD target and picks one at run time. The targets are
// included again from here, so everything up to the second part is inside HWY_NAMESPACE.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "shardwise/runtime/kernels/detail/philox_blocks.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h, as Highway wants it.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace shardwise::detail {
namespace HWY_NAMESPACE {
namespace {

std::uint32_t low_word(std::uint64_t value) { return static_cast<std::uint32_t>(value); }

#if HWY_TARGET != HWY_SCALAR  // which has no words of two sizes
namespace hn = hwy::HWY_NAMESPACE;
using Words = hn::CappedTag<std::uint32_t, 16>;
using Wide = hn::RepartitionToWide<Words>;
using WordVector = hn::Vec<Words>;

/// The upper halves of the products of each word with a number.
HWY_INLINE WordVector multiply_high(WordVector a, WordVector number) {
  const Words words;
  const auto even = hn::MulEven(a, number);
  const auto odd =
      hn::MulEven(hn::BitCast(words, hn::ShiftRight<32>(hn::BitCast(Wide(), a))), number);
  return hn::OddEven(hn::BitCast(words, odd), hn::BitCast(words, hn::ShiftRight<32>(even)));
}

/// Processes as many counters at once as a vector has words.
void vector_blocks(std::uint64_t key, std::uint64_t counter, std::uint32_t* out) {
  const Words words;
  const WordVector first = hn::Set(words, 0xD2511F53), second = hn::Set(words, 0xCD9E8D57);
  const WordVector low_counter = hn::Set(words, low_word(counter));
  WordVector a = hn::Add(low_counter, hn::Iota(words, 0));
  // If the lower word overflows, the upper one is one more.
  const WordVector carry = hn::IfThenElseZero(hn::Lt(a, low_counter), hn::Set(words, 1));
  WordVector b = hn::Add(hn::Set(words, low_word(counter >> 32)), carry);
  WordVector c = hn::Zero(words), d = c;
  std::uint32_t key_a = low_word(key), key_b = low_word(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const WordVector high_a = multiply_high(a, first), low_a = hn::Mul(a, first);
    const WordVector high_c = multiply_high(c, second), low_c = hn::Mul(c, second);
    a = hn::Xor(hn::Xor(high_c, b), hn::Set(words, key_a));
    b = low_c;
    c = hn::Xor(hn::Xor(high_a, d), hn::Set(words, key_b));
    d = low_a;
    key_a += 0x9E3779B9;
    key_b += 0xBB67AE85;
  }
  hn::StoreInterleaved4(a, b, c, d, words, out);
}
#endif

void blocks(std::uint64_t key, std::uint64_t counter, std::uint64_t count, std::uint32_t* out) {
#if HWY_TARGET != HWY_SCALAR
  const std::uint64_t lanes = hn::Lanes(Words());
  for (; count >= lanes; count -= lanes, counter += lanes, out += 4 * lanes) {
    vector_blocks(key, counter, out);
  }
#endif
  for (; count > 0; --count, ++counter, out += 4) {
    const std::array<std::uint32_t, 4> block = philox(
        {low_word(counter), low_word(counter >> 32), 0, 0}, {low_word(key), low_word(key >> 32)});
    std::memcpy(out, block.data(), sizeof(block));
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace shardwise::detail
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shardwise::detail {
namespace {
HWY_EXPORT(blocks);
}  // namespace

void philox_blocks(std::uint64_t key, std::uint64_t first_counter, std::uint64_t counters,
                   std::uint32_t* out) {
  HWY_DYNAMIC_DISPATCH(blocks)(key, first_counter, counters, out);
}

}  // namespace shardwise::detail
#endif
