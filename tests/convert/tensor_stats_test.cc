#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "shardwise/convert/elements.h"
#include "shardwise/shard/box_copy.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

/// One tensor in memory, a vector.
template <class T>
class Values final : public BoxReader {
 public:
  Values(DType dtype, std::vector<T> values)
      : values_(std::move(values)),
        info_{
            .name = "x",
            .dtype = dtype,
            .shape = {static_cast<std::int64_t>(values_.size() * sizeof(T) / size_bytes(dtype))}} {}

  std::span<const TensorInfo> tensors() const override { return {&info_, 1}; }
  void read(std::size_t, const Box& box, std::span<std::byte> out) const override {
    copy_box(box, size_bytes(info_.dtype),
             {std::as_bytes(std::span(values_)).data(), Box::whole(info_.shape)},
             {out.data(), box});
  }

 private:
  std::vector<T> values_;
  TensorInfo info_;
};

template <class T>
TensorStats stats_of(DType dtype, std::vector<T> values, const StatsOptions& options = {}) {
  const std::size_t first[] = {0};
  return tensor_stats(Values<T>(dtype, std::move(values)), first, options).at(0);
}

TEST(TensorStats, LeaveOutWhatIsNotFinite) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInf = std::numeric_limits<float>::infinity();
  const TensorStats stats = stats_of<float>(DType::f32, {kNan, -1, kInf, 3, -0.0F, -kInf, 2});
  EXPECT_EQ(stats.elements, 7);
  EXPECT_EQ(stats.nan, 1);
  EXPECT_EQ(stats.infinities, 2);
  EXPECT_EQ(stats.zeros, 1);
  EXPECT_EQ(stats.min, -1);
  EXPECT_EQ(stats.max, 3);
  EXPECT_EQ(stats.mean, 1);
  EXPECT_NEAR(static_cast<double>(stats.deviation), std::sqrt(2.5), 1e-15);
  for (const auto& none : {std::vector<float>{}, std::vector<float>{kNan, kInf}}) {
    const TensorStats empty = stats_of(DType::f32, none, {.bars = 2});
    EXPECT_TRUE(std::isnan(empty.min) && std::isnan(empty.max) && std::isnan(empty.mean));
    EXPECT_EQ(empty.histogram, (std::vector<std::int64_t>{0, 0}));
  }
}

TEST(TensorStats, AreExactForLargeIntegersAndASmallSpreadFarFromZero) {
  const TensorStats ends = stats_of<std::uint64_t>(DType::u64, {~std::uint64_t{0}, 1});
  EXPECT_EQ(ends.max, 18446744073709551615.0L);
  std::vector<double> far(100'000);
  for (std::size_t i = 0; i < far.size(); ++i) far[i] = 1e9 + (i % 2 == 0 ? 1e-3 : -1e-3);
  const TensorStats spread = stats_of(DType::f64, far);
  EXPECT_NEAR(static_cast<double>(spread.deviation), 1e-3, 1e-7);
}

TEST(TensorStats, OfPartsThatDifferAreJoined) {
  std::vector<std::int32_t> rising(100'000);
  std::iota(rising.begin(), rising.end(), 0);
  const TensorStats stats = stats_of(DType::i32, rising);
  const double n = 1e5;
  EXPECT_DOUBLE_EQ(static_cast<double>(stats.mean), (n - 1) / 2);
  EXPECT_DOUBLE_EQ(static_cast<double>(stats.deviation), std::sqrt((n * n - 1) / 12));
}

TEST(TensorStats, OfComplexNumbersAreOfTheModulus) {
  const TensorStats stats = stats_of<float>(DType::c64, {3, 4, 0, 0, 0, 1});
  EXPECT_EQ(stats.elements, 3);
  EXPECT_EQ(stats.zeros, 1);
  EXPECT_EQ(stats.max, 5);
  EXPECT_EQ(stats.mean, 2);
}

TEST(TensorStats, BarsAreOfEqualWidthAndTheLastHoldsItsEnd) {
  const TensorStats stats = stats_of<std::int32_t>(DType::i32, {0, 1, 2, 3, 4, 4}, {.bars = 4});
  EXPECT_EQ(stats.histogram, (std::vector<std::int64_t>{1, 1, 1, 3}));
  const TensorStats one = stats_of<std::int32_t>(DType::i32, {7, 7}, {.bars = 2});
  EXPECT_EQ(one.histogram, (std::vector<std::int64_t>{0, 2}));
  EXPECT_EQ(one.low, 6.5L);
  EXPECT_EQ(message_of(ErrorCode::invalid_argument,
                       [] { stats_of<float>(DType::f32, {1}, {.bars = -1}); }),
            "look at tensors: found -1 bars, needed 0 to 10000");
}

TEST(TensorStats, AreTheSameBitsForAnyNumberOfThreads) {
  std::vector<float> values(200'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  const TensorStats one = stats_of(DType::f32, values, {.threads = 1, .bars = 9}),
                    four = stats_of(DType::f32, values, {.threads = 4, .bars = 9});
  EXPECT_EQ(one.mean, four.mean);
  EXPECT_EQ(one.deviation, four.deviation);
  EXPECT_EQ(one.histogram, four.histogram);
}

TEST(TensorStats, ProgressCountsWhatIsReadForBars) {
  Progress last;
  stats_of<float>(DType::f32, {1, 2},
                  {.bars = 1, .progress = [&](const Progress& so_far) { last = so_far; }});
  EXPECT_EQ(last.total_bytes, 16u);
  EXPECT_EQ(last.done_bytes, 16u);
}

}  // namespace
}  // namespace shardwise
