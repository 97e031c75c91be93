#include "shardwise/shard/host/page_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

namespace shardwise {
namespace {

std::uintptr_t past(const std::byte* memory, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(memory) % alignment;
}

TEST(PageMemory, BeginsOnLinesPagesAndHugePagesByItsSize) {
  struct Case {
    std::size_t size_bytes, alignment;
  };
  constexpr Case cases[] = {{0, 64},
                            {1, 64},
                            {kLeastPagedBytes - 1, 64},
                            {kLeastPagedBytes, kPageBytes},
                            {kHugePageBytes - 1, kPageBytes},
                            {kHugePageBytes, kHugePageBytes},
                            {kHugePageBytes * 2 + 5, kHugePageBytes}};
  for (const auto& [size_bytes, alignment] : cases) {
    SCOPED_TRACE(size_bytes);
    // Several, as one may be aligned by chance.
    std::byte* several[5];
    for (std::byte*& memory : several) {
      memory = allocate_memory(size_bytes);
      EXPECT_EQ(past(memory, alignment), 0u);
      std::fill_n(memory, size_bytes, std::byte{1});
    }
    for (std::byte* memory : several) free_memory(memory, size_bytes);

    const PageMemory page = page_memory(size_bytes), other = page_memory(size_bytes);
    EXPECT_EQ(past(page.get(), std::max(alignment, kPageBytes)), 0u);
    EXPECT_EQ(past(other.get(), std::max(alignment, kPageBytes)), 0u);
    std::fill_n(page.get(), size_bytes, std::byte{1});
  }
}

}  // namespace
}  // namespace shardwise
