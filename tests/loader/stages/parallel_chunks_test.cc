#include "shardwise/loader/stages/detail/parallel_chunks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "loader/pattern_source.h"

namespace shardwise {
namespace {

TEST(ParallelChunks, CoverAllNumbersOnce) {
  for (const std::int64_t total : {0, 1, 9, 10, 11, 1000}) {
    for (const int threads : {1, 3, 20}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(total));
      detail::for_each_chunk(total, 10, threads, {}, [&](std::int64_t begin, std::int64_t end) {
        EXPECT_TRUE(begin % 10 == 0 && (end == begin + 10 || end == total));
        for (std::int64_t i = begin; i < end; ++i) ++calls[static_cast<std::size_t>(i)];
      });
      for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
    }
  }
}

std::string error_of_chunks(int threads, const std::function<void(std::int64_t)>& body) {
  try {
    detail::for_each_chunk(20, 10, threads, {}, [&](std::int64_t begin, auto) { body(begin); });
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "none";
}

// Two chunks fail on two threads, in both orders.
TEST(ParallelChunks, TheErrorOfTheLowestChunkIsThrown) {
  for (int trial = 0; trial < 200; ++trial) {
    Gate gate;
    const std::int64_t first = trial % 2 == 0 ? 0 : 10;
    std::atomic<int> taken{0};
    Gate both;
    EXPECT_EQ(error_of_chunks(2,
                              [&](std::int64_t begin) {
                                if (++taken == 2) both.open();
                                both.pass();
                                if (begin == first) {
                                  gate.open();
                                } else {
                                  gate.pass();
                                }
                                throw std::runtime_error(begin == 0 ? "low" : "high");
                              }),
              "low");
  }
}

TEST(ParallelChunks, NothingIsTakenAfterAnError) {
  int calls = 0;
  EXPECT_EQ(error_of_chunks(1,
                            [&](std::int64_t) {
                              ++calls;
                              throw std::runtime_error("first");
                            }),
            "first");
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace shardwise
