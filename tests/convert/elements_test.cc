#include "shardwise/convert/elements.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "testing/errors.h"

namespace shardwise {
namespace {

using testing::HasSubstr;

/// Each element is its row-major number. Notes the largest read.
class Counted final : public BoxReader {
 public:
  explicit Counted(const Shape& shape)
      : info_{.name = "x", .dtype = DType::i32, .shape = shape},
        strides_(row_major_strides(shape)) {}

  std::span<const TensorInfo> tensors() const override { return {&info_, 1}; }
  void read(std::size_t, const Box& box, std::span<std::byte> out) const override {
    most_bytes = std::max(most_bytes, out.size());
    ++reads;
    std::byte* to = out.data();
    for_each_index(box, [&](const Index& at) {
      std::int32_t number = 0;
      for (std::size_t d = 0; d < at.size(); ++d) {
        number += static_cast<std::int32_t>(at[d] * strides_[d]);
      }
      std::memcpy(to, &number, sizeof number);
      to += sizeof number;
    });
  }

  mutable std::size_t most_bytes = 0;
  mutable int reads = 0;

 private:
  TensorInfo info_;
  Dims strides_;
};

std::string text_of(const BoxReader& reader, const ShownBox& shown, ElementText style) {
  std::string all;
  print_elements(reader, 0, shown, style, [&](std::string_view text) { all += text; });
  return all;
}

ShownBox whole(const Shape& shape) { return {Box::whole(shape), shape}; }

TEST(Elements, AreInBrackets) {
  EXPECT_EQ(text_of(Counted({}), whole({}), ElementText::summary), "0");
  EXPECT_EQ(text_of(Counted({3}), whole({3}), ElementText::summary), "[0, 1, 2]");
  EXPECT_EQ(text_of(Counted({2, 0}), whole({2, 0}), ElementText::summary), "[]");
  const Counted cube({2, 2, 3});
  EXPECT_EQ(text_of(cube, whole({2, 2, 3}), ElementText::summary),
            "[[[ 0,  1,  2],\n"
            "  [ 3,  4,  5]],\n"
            " [[ 6,  7,  8],\n"
            "  [ 9, 10, 11]]]");
  EXPECT_EQ(text_of(cube, whole({2, 2, 3}), ElementText::json),
            "[[[0,1,2],[3,4,5]],[[6,7,8],[9,10,11]]]");
  const ShownBox column{Box({0, 1, 1}, {2, 2, 2}), {2}};
  EXPECT_EQ(text_of(cube, column, ElementText::summary), "[ 4, 10]");
}

TEST(Elements, OfMoreThan1000TheEndsAreRead) {
  const Counted row({1001});
  EXPECT_EQ(text_of(row, whole({1001}), ElementText::summary),
            "[   0,    1,    2, ...,  998,  999, 1000]");
  EXPECT_EQ(row.most_bytes, 3 * sizeof(std::int32_t));
  EXPECT_EQ(row.reads, 2);
  EXPECT_EQ(text_of(Counted({2, 700}), whole({2, 700}), ElementText::summary),
            "[[   0,    1,    2, ...,  697,  698,  699],\n"
            " [ 700,  701,  702, ..., 1397, 1398, 1399]]");
  EXPECT_THAT(text_of(Counted({700, 2}), whole({700, 2}), ElementText::summary),
              HasSubstr("[   4,    5],\n ...,\n [1394, 1395]"));
  const Shape many = Dims::filled(9, 7);
  EXPECT_EQ(message_of(ErrorCode::unsupported,
                       [&] { text_of(Counted(many), whole(many), ElementText::summary); }),
            "show tensor \"x\": found 10077696 elements even in a summary, needed a box of at most "
            "1048576");
}

TEST(Elements, AllOfThemTakeBoundedMemory) {
  const Shape shape{3, 1 << 21};  // 24 MiB
  const Counted reader(shape);
  std::size_t bytes = 0;
  write_npy(reader, 0, whole(shape),
            [&](std::span<const std::byte> part) { bytes += part.size(); });
  EXPECT_EQ(bytes, 128 + (std::size_t{24} << 20));
  EXPECT_LE(reader.most_bytes, std::size_t{16} << 20);
  const ShownBox part{Box({1, 5}, {2, 2000}), {1995}};
  const std::string text = text_of(reader, part, ElementText::all);
  EXPECT_EQ(std::ranges::count(text, ','), 1994);
  EXPECT_TRUE(text.starts_with("[2097157, 2097158, ")) << text.substr(0, 40);
}

TEST(Elements, WhatAWriteThrowsPassesThrough) {
  const auto full = [](std::span<const std::byte>) { throw Error(ErrorCode::io, "full"); };
  EXPECT_EQ(message_of(ErrorCode::io, [&] { write_npy(Counted({2}), 0, whole({2}), full); }),
            "full");
}

}  // namespace
}  // namespace shardwise
