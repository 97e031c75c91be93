#include "shardwise/checkpoint/detail/lanes/scratch_pool.h"

#include <gtest/gtest.h>

#include "shardwise/checkpoint/detail/codec/codec.h"

namespace shardwise::detail {
namespace {

struct Numbered {
  int number = 0;
  std::size_t bytes = 0;
  std::size_t held_bytes() const { return bytes; }
};

using Pool = ScratchPool<Numbered>;

TEST(ScratchPool, LendsEachToOneAtATimeAndKeepsItForTheNext) {
  Pool pool;
  {
    const Pool::Loan first(pool), second(pool);
    EXPECT_NE(&*first, &*second);
    first->number = 1;
    second->number = 2;
  }
  const Pool::Loan first(pool), second(pool), third(pool);
  EXPECT_EQ(first->number + second->number, 3);
  EXPECT_EQ(third->number, 0) << "a new one";
}

TEST(ScratchPool, KeepsNothingThatHasGrownBeyondOurChunks) {
  Pool pool;
  for (const std::size_t bytes : {Pool::kKeptBytes, Pool::kKeptBytes + 1}) {
    const Pool::Loan loan(pool);
    loan->number = 7;
    loan->bytes = bytes;
  }
  EXPECT_EQ(Pool::Loan(pool)->number, 0);
  {
    const Pool::Loan loan(pool);
    loan->number = 8;
    loan->bytes = Pool::kKeptBytes;
  }
  EXPECT_EQ(Pool::Loan(pool)->number, 8);
}

TEST(ScratchPool, ADecoderOfLargeChunksIsNotKept) {
  const std::vector<std::byte> chunk(ScratchPool<Decoder>::kKeptBytes + 1);
  std::vector<std::byte> stored(chunk.size());
  stored.resize(Encoder().encode(chunk, 1, Effort::matches, stored));
  ScratchPool<Decoder> pool;
  {
    const ScratchPool<Decoder>::Loan loan(pool);
    loan->decompress(stored, chunk.size());
    EXPECT_GE(loan->held_bytes(), chunk.size());
  }
  EXPECT_EQ(ScratchPool<Decoder>::Loan(pool)->held_bytes(), 0u);
}

}  // namespace
}  // namespace shardwise::detail
