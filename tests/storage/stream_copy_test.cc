#include "shardwise/storage/detail/stream_copy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <thread>
#include <vector>

#include "testing/simd_targets.h"

namespace shardwise {
namespace {

using Bytes = std::vector<std::byte>;

// Sizes around lines and groups of pages, from any place to any; nothing else is touched.
TEST(StreamCopy, CopiesAllAndNothingElse) {
  std::mt19937 random(2);
  Bytes from(100'000);
  std::generate(from.begin(), from.end(), [&] { return static_cast<std::byte>(random()); });
  for (const std::size_t around : {0u, 1u, 64u, 128u, 4096u, 16'384u, 32'768u, 65'536u}) {
    for (int i = 0; i < 40; ++i) {
      const std::size_t size = around + random() % 130, at = random() % 130, to = random() % 130;
      Bytes found(70'000, std::byte{7}), expected = found;
      std::copy_n(from.data() + at, size, expected.data() + to);
      stream_copy(found.data() + to, from.data() + at, size);
      stream_fence();
      ASSERT_TRUE(found == expected) << size << " from " << at << " to " << to;
    }
  }
  stream_copy(nullptr, nullptr, 0);
}

TEST(StreamCopy, CopiesTheSameOnEachTarget) {
  std::mt19937 random(3);
  Bytes from(40'000);
  std::generate(from.begin(), from.end(), [&] { return static_cast<std::byte>(random()); });
  on_each_target([&] {
    for (const std::size_t around : {0u, 64u, 128u, 4096u, 16'384u, 32'768u}) {
      for (int i = 0; i < 20; ++i) {
        const std::size_t size = around + random() % 130, at = random() % 130, to = random() % 130;
        Bytes found(34'000, std::byte{7}), expected = found;
        std::copy_n(from.data() + at, size, expected.data() + to);
        stream_copy(found.data() + to, from.data() + at, size);
        stream_fence();
        ASSERT_TRUE(found == expected) << size << " from " << at << " to " << to;
      }
    }
  });
}

TEST(StreamCopy, AnotherThreadSeesItAfterTheFence) {
  Bytes from(1 << 20, std::byte{1}), to(from.size());
  for (int round = 0; round < 50; ++round) {
    std::fill(from.begin(), from.end(), static_cast<std::byte>(round));
    std::thread([&] {
      stream_copy(to.data(), from.data(), from.size());
      stream_fence();
    }).join();
    ASSERT_TRUE(to == from);
  }
}

}  // namespace
}  // namespace shardwise
