#include "shardwise/loader/detail/files/file_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <latch>
#include <random>
#include <thread>

#include "loader/sources/source_reads.h"
#include "shardwise/loader/detail/files/byte_order.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using detail::HeldBytes;
using detail::HoldBudget;
using ::testing::HasSubstr;

Bytes counted_bytes(std::size_t count) {
  Bytes all(count);
  for (std::size_t i = 0; i < count; ++i) all[i] = static_cast<std::byte>(i * 131 + (i >> 8) * 7);
  return all;
}

TEST(HeldBytes, ReadsEachBlockOnceWhateverTheThreads) {
  const Bytes data = counted_bytes(1000);
  std::array<std::atomic<int>, 10> reads{};
  HoldBudget budget{1000};
  const HeldBytes held(1000, 105, budget, [&](std::size_t offset, std::span<std::byte> out) {
    ++reads.at(offset / 105);
    std::copy_n(data.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
    return out.size();
  });
  EXPECT_EQ(budget.left_bytes, 0u);
  std::atomic<int> wrong{0};
  const auto look = [&](std::size_t offset, std::size_t size) {
    const std::byte* found = held.find(offset, size);
    const auto right = data.begin() + static_cast<std::ptrdiff_t>(offset);
    if (found != nullptr && !std::equal(found, found + size, right)) ++wrong;
    return found != nullptr;  // null while another thread reads one of the blocks
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        std::mt19937 random(t);
        for (int i = 0; i < 2000; ++i) {
          const std::size_t offset = random() % 1000, size = random() % (1001 - offset);
          look(offset, size);
        }
      });
    }
  }
  EXPECT_TRUE(look(0, 1000));
  EXPECT_EQ(wrong, 0);
  for (const auto& count : reads) EXPECT_EQ(count, 1);
  EXPECT_EQ(held.find(0, 1001), nullptr);
  EXPECT_EQ(held.find(1001, 0), nullptr);
  EXPECT_EQ(held.find(std::size_t{0} - 1, 2), nullptr);
}

TEST(HeldBytes, WaitsForNoOtherThread) {
  std::latch reading(1), looked(1);
  HoldBudget budget{200};
  const HeldBytes held(200, 100, budget, [&](std::size_t offset, std::span<std::byte> out) {
    if (offset == 0) {
      reading.count_down();
      looked.wait();
    }
    return out.size();
  });
  {
    const std::jthread other([&] { EXPECT_NE(held.find(0, 1), nullptr); });
    reading.wait();
    EXPECT_EQ(held.find(0, 1), nullptr);
    EXPECT_EQ(held.find(50, 100), nullptr);
    EXPECT_NE(held.find(100, 1), nullptr);
    looked.count_down();
  }
  EXPECT_NE(held.find(0, 200), nullptr);
}

TEST(HeldBytes, KeepsNothingBeyondItsBudgetAndNothingThatIsShort) {
  const auto nothing = [](std::size_t, std::span<std::byte> out) { return out.size() - 1; };
  HoldBudget budget{999};
  const HeldBytes large(1000, 100, budget, nothing);
  EXPECT_FALSE(large.holds());
  EXPECT_EQ(large.find(0, 1), nullptr);
  EXPECT_EQ(budget.left_bytes, 999u);
  const HeldBytes empty(0, 100, budget, nothing);
  EXPECT_EQ(empty.find(0, 0), nullptr);
  const HeldBytes cut(500, 100, budget, nothing);
  EXPECT_TRUE(cut.holds());
  EXPECT_EQ(cut.find(0, 1), nullptr);
  EXPECT_EQ(cut.find(0, 1), nullptr);
}

TEST(HeldBytes, TriesAgainAfterAnError) {
  int calls = 0;
  HoldBudget budget{100};
  const HeldBytes held(100, 100, budget, [&](std::size_t, std::span<std::byte> out) {
    if (++calls == 1) throw Error(ErrorCode::io, "broken disk");
    std::fill(out.begin(), out.end(), std::byte{3});
    return out.size();
  });
  EXPECT_THAT(message_of(ErrorCode::io, [&] { held.find(0, 1); }), HasSubstr("broken disk"));
  ASSERT_NE(held.find(99, 1), nullptr);
  EXPECT_EQ(*held.find(99, 1), std::byte{3});
  EXPECT_EQ(calls, 2);
}

TEST(SwapBytes, TurnsEachElementRound) {
  Bytes data = bytes({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16});
  const auto swapped = [&](DType dtype) {
    Bytes all = data;
    detail::swap_bytes(dtype, all);
    return all;
  };
  EXPECT_EQ(swapped(DType::u8), data);
  EXPECT_EQ(swapped(DType::boolean), data);
  EXPECT_EQ(first_of(swapped(DType::bf16), 4), bytes({2, 1, 4, 3}));
  EXPECT_EQ(first_of(swapped(DType::f32), 8), bytes({4, 3, 2, 1, 8, 7, 6, 5}));
  EXPECT_EQ(first_of(swapped(DType::i64), 8), bytes({8, 7, 6, 5, 4, 3, 2, 1}));
  EXPECT_EQ(first_of(swapped(DType::c64), 8), bytes({4, 3, 2, 1, 8, 7, 6, 5}));
  EXPECT_EQ(first_of(swapped(DType::c128), 9), bytes({8, 7, 6, 5, 4, 3, 2, 1, 16}));
}

// Rows across blocks, with and without kept ones, in both byte orders.
TEST(FileRows, ReadsBoxesKeptOrNot) {
  const Field field{"x", DType::i16, {7, 13, 11}};
  const std::size_t row = num_bytes({7, 13, 11}, 2);
  const Bytes data = counted_bytes(100 + 2100 * row);
  for (const std::size_t hold : {std::size_t{0}, data.size()}) {
    for (const bool swapped : {false, true}) {
      SCOPED_TRACE(hold);
      const auto source =
          detail::file_rows_source(file_of(data), field, 2100, {100, row, swapped}, hold);
      for (const std::int64_t record : {0, 523, 524, 1047, 2099}) {
        Bytes expected(data.begin() + static_cast<std::ptrdiff_t>(100 + as_size(record) * row),
                       data.begin() + static_cast<std::ptrdiff_t>(100 + as_size(record + 1) * row));
        if (swapped) detail::swap_bytes(field.dtype, expected);
        ASSERT_EQ(read_whole(*source, 0, record), expected);
      }
      expect_boxes_agree(*source, 200, 1);
    }
  }
}

TEST(FileRows, ReadsRowsLargerThanABlockInParts) {
  const Field field{"x", DType::u8, {3, 700, 1000}};
  const Bytes data = counted_bytes(2 * 2100000 + 5);
  for (const std::size_t hold : {std::size_t{0}, data.size()}) {
    const auto source =
        detail::file_rows_source(file_of(data), field, 2, {5, 2100000, false}, hold);
    expect_boxes_agree(*source, 20, 2);
  }
}

TEST(FileRows, OverlapsWhereTheStrideIsShort) {
  const Bytes data = counted_bytes(50);
  const auto source =
      detail::file_rows_source(file_of(data), {"x", DType::u8, {10}}, 41, {0, 1, false}, 50);
  for (std::int64_t record = 0; record < 41; ++record) {
    const auto begin = data.begin() + static_cast<std::ptrdiff_t>(record);
    EXPECT_EQ(read_whole(*source, 0, record), Bytes(begin, begin + 10));
  }
}

// Rows read before the file was cut stay readable; the rest is an error that says where.
TEST(FileRows, NamesTheRecordThatIsMissing) {
  for (const std::size_t hold : {std::size_t{0}, std::size_t{1000}}) {
    const auto content = std::make_shared<Bytes>(counted_bytes(1000));
    const auto source = detail::file_rows_source(file_of(content), {"x", DType::u8, {10}}, 100,
                                                 {0, 10, false}, hold);
    content->resize(555);
    const Bytes all = counted_bytes(1000);
    EXPECT_EQ(read_whole(*source, 0, 54), Bytes(all.begin() + 540, all.begin() + 550));
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read_whole(*source, 0, 55); }),
                HasSubstr("read: here: record 55 at offset 550 got 5 bytes, needed is 10"));
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read_bytes(*source, 0, 99, Box({3}, {5})); }),
                HasSubstr("record 99"));
    content->clear();
    EXPECT_THAT(message_of(ErrorCode::corrupt, [&] { read_whole(*source, 0, 0); }),
                HasSubstr("record 0 at offset 0 got 0 bytes"));
  }
}

}  // namespace
}  // namespace shardwise
