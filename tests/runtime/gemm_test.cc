#include "shardwise/runtime/gemm.h"

#include <cblas.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "shardwise/runtime/parallel.h"
#include "shardwise/shard/error.h"
#include "testing/errors.h"

namespace shardwise {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// Small integers, so that every sum is exact in any order.
std::vector<float> integers(std::int64_t count, std::mt19937& random) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = static_cast<float>(static_cast<int>(random() % 17) - 8);
  return values;
}

float element(const ConstMatrix& m, std::int64_t row, std::int64_t col) {
  return m.transpose == Transpose::yes ? m.data[col * m.cols + row] : m.data[row * m.cols + col];
}

TEST(Gemm, EqualsTheThreeLoopsForAllTransposesAndBetas) {
  std::mt19937 random(2);
  const std::int64_t sizes[] = {0, 1, 2, 5, 16, 33};
  for (int round = 0; round < 400; ++round) {
    const std::int64_t m = sizes[random() % 6], n = sizes[random() % 6], k = sizes[random() % 6];
    const auto a_data = integers(m * k, random), b_data = integers(k * n, random);
    auto out = integers(m * n, random);
    const bool ta = random() % 2, tb = random() % 2;
    const ConstMatrix a{a_data.data(), ta ? k : m, ta ? m : k, ta ? Transpose::yes : Transpose::no};
    const ConstMatrix b{b_data.data(), tb ? n : k, tb ? k : n, tb ? Transpose::yes : Transpose::no};
    const float beta = static_cast<float>(random() % 3);
    auto expected = out;
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j) {
        float& sum = expected[static_cast<std::size_t>(i * n + j)];
        sum *= beta;
        for (std::int64_t l = 0; l < k; ++l) sum += element(a, i, l) * element(b, l, j);
      }
    }
    gemm(a, b, {out.data(), m, n}, beta);
    EXPECT_EQ(out, expected) << m << "x" << n << "x" << k << " " << ta << tb << " " << beta;
  }
}

TEST(Gemm, DoesNotReadTheResultWithoutBeta) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a{1, 2}, b{3, 4};
  std::vector<float> out(1, nan);
  gemm({a.data(), 1, 2}, {b.data(), 2, 1}, {out.data(), 1, 1});
  EXPECT_EQ(out[0], 11);
  out[0] = nan;
  gemm({a.data(), 1, 0}, {b.data(), 0, 1}, {out.data(), 1, 1});
  EXPECT_EQ(out[0], 0);
}

TEST(Gemm, RefusesShapesThatDoNotAgree) {
  const std::vector<float> x(64);
  std::vector<float> out(64);
  struct Case {
    const char* name;
    ConstMatrix a, b;
    Matrix out;
    const char* message;
  };
  const Case cases[] = {
      {"inner", {x.data(), 2, 3}, {x.data(), 4, 5}, {out.data(), 2, 5}, "[2, 3] times [4, 5]"},
      {"transposed inner",
       {x.data(), 2, 3, Transpose::yes},
       {x.data(), 3, 5},
       {out.data(), 2, 5},
       "[2, 3]^T"},
      {"rows", {x.data(), 2, 3}, {x.data(), 3, 5}, {out.data(), 3, 5}, "into [3, 5]"},
      {"cols", {x.data(), 2, 3}, {x.data(), 3, 5}, {out.data(), 2, 4}, "into [2, 4]"},
      {"negative", {x.data(), -2, 3}, {x.data(), 3, 5}, {out.data(), -2, 5}, "negative"},
      {"huge",
       {x.data(), std::int64_t{1} << 40, 3},
       {x.data(), 3, 5},
       {out.data(), std::int64_t{1} << 40, 5},
       "1099511627776"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { gemm(c.a, c.b, c.out); }),
                AllOf(HasSubstr("gemm: "), HasSubstr(c.message)));
  }
}

TEST(Gemm, ManyAtOnceGiveTheSameBitsAsOneByOne) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  constexpr std::int64_t kSize = 96;
  std::vector<float> a(kSize * kSize), b(kSize * kSize);
  for (float& value : a) value = normal(random);
  for (float& value : b) value = normal(random);
  const auto multiply = [&](std::vector<float>& out) {
    gemm({a.data(), kSize, kSize}, {b.data(), kSize, kSize}, {out.data(), kSize, kSize});
  };
  std::vector<float> alone(kSize * kSize);
  multiply(alone);
  std::vector<std::vector<float>> together(32, std::vector<float>(kSize * kSize));
  Executor(4).parallel_for(
      32, [&](std::int64_t i) { multiply(together[static_cast<std::size_t>(i)]); });
  for (const auto& result : together) EXPECT_EQ(result, alone);
}

TEST(Gemm, LeavesTheNumberOfThreadsAndTheEnvironmentAsTheyWere) {
  const int before = openblas_get_num_threads();
  const std::string kernels = openblas_get_corename();
  const bool had_variable = std::getenv("OPENBLAS_CORETYPE") != nullptr;
  for (const int threads : {2, 1}) {
    openblas_set_num_threads(threads);
    const int host = openblas_get_num_threads();  // as many as the library can
    const Executor executor(4);
    executor.parallel_for(64, [](std::int64_t) {
      const std::vector<float> a(40 * 40, 1), b(40 * 40, 2);
      std::vector<float> out(40 * 40);
      gemm({a.data(), 40, 40}, {b.data(), 40, 40}, {out.data(), 40, 40});
      EXPECT_EQ(out[7], 80);
    });
    EXPECT_EQ(openblas_get_num_threads(), host);
  }
  EXPECT_EQ(openblas_get_corename(), kernels);
  EXPECT_EQ(std::getenv("OPENBLAS_CORETYPE") != nullptr, had_variable);
  openblas_set_num_threads(before);
}

}  // namespace
}  // namespace shardwise
