#include "shardwise/convert/detail/box_runs.h"

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

namespace shardwise {
namespace {

std::vector<std::int32_t> counting(std::int64_t count) {
  std::vector<std::int32_t> values(as_size(count));
  std::iota(values.begin(), values.end(), 0);
  return values;
}

// A file that counts its reads.
class CountedFile final : public File {
 public:
  explicit CountedFile(std::span<const std::byte> bytes) : bytes_(bytes) {}

  void read_at(std::uint64_t offset, std::byte* data, std::size_t size) override {
    ++reads;
    ASSERT_LE(offset + size, bytes_.size());
    std::memcpy(data, bytes_.data() + offset, size);
  }
  std::uint64_t size() override { return bytes_.size(); }
  void write_at(std::uint64_t, const std::byte*, std::size_t) override {}
  void resize(std::uint64_t) override {}
  void sync() override {}
  void close() override {}

  int reads = 0;

 private:
  std::span<const std::byte> bytes_;
};

std::vector<std::int32_t> read_of(CountedFile& file, const Shape& shape, const Box& box) {
  std::vector<std::int32_t> out(as_size(box.num_elements()));
  detail::read_box(file, 4, shape, 4, box, std::as_writable_bytes(std::span(out)));
  return out;
}

TEST(BoxRuns, ReadsWhatOneByOneReads) {
  const Shape shape{7, 5, 6};
  std::vector<std::int32_t> values = counting(1 + num_elements(shape));
  CountedFile file(std::as_bytes(std::span(values)));
  const Dims strides = row_major_strides(shape);
  for_each_index(Box({0, 0, 0}, shape), [&](const Index& begin) {
    for (const std::int64_t size : {1, 2, 7}) {
      Index end = begin;
      for (std::size_t d = 0; d < 3; ++d) end[d] = std::min(end[d] + size, shape[d]);
      const Box box(begin, end);
      std::vector<std::int32_t> expected;
      for_each_index(box, [&](const Index& at) {
        std::int64_t number = 1;
        for (std::size_t d = 0; d < 3; ++d) number += at[d] * strides[d];
        expected.push_back(static_cast<std::int32_t>(number));
      });
      ASSERT_EQ(read_of(file, shape, box), expected) << to_string(box);
    }
  });
  EXPECT_TRUE(read_of(file, shape, Box({1, 2, 3}, {1, 2, 3})).empty());
}

TEST(BoxRuns, NearRunsAreReadTogetherFarOnesNot) {
  const std::vector<std::int32_t> values = counting(1 + 64 * 16384);
  CountedFile file(std::as_bytes(std::span(values)));
  read_of(file, {1024, 1024}, Box({0, 0}, {1024, 1024}));
  EXPECT_EQ(file.reads, 1) << "one run";
  file.reads = 0;
  read_of(file, {1024, 1024}, Box({0, 8}, {512, 16}));
  EXPECT_EQ(file.reads, 8) << "2 MiB, 256 KiB at a time";
  file.reads = 0;
  EXPECT_EQ(read_of(file, {64, 16384}, Box({0, 1}, {64, 2})).back(), 63 * 16384 + 2);
  EXPECT_EQ(file.reads, 64) << "64 KiB apart";
}

}  // namespace
}  // namespace shardwise
