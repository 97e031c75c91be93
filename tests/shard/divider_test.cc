#include "shardwise/shard/detail/divider.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>

namespace shardwise::detail {
namespace {

void check(std::int64_t dividend, std::int64_t divisor) {
  const Divider divider(divisor);
  ASSERT_EQ(divider.quotient(dividend), dividend / divisor) << dividend << " / " << divisor;
  ASSERT_EQ(divider.remainder(dividend), dividend % divisor);
  ASSERT_EQ(divider.ceil(dividend), dividend / divisor + (dividend % divisor != 0 ? 1 : 0));
}

TEST(Divider, DividesAsTheProcessorDoes) {
  std::mt19937_64 random(1);
  const auto draw = [&random] {  // of any magnitude
    return static_cast<std::int64_t>(random() >> 1 >> (random() % 63));
  };
  for (int round = 0; round < 200000; ++round) {
    const std::int64_t divisor = std::max<std::int64_t>(draw(), 1);
    const std::int64_t dividend = draw();
    check(dividend, divisor);
    const std::int64_t multiple = dividend / divisor * divisor;
    check(multiple, divisor);
    if (multiple > 0) check(multiple - 1, divisor);
  }
}

TEST(Divider, DividesAtTheEdges) {
  const std::int64_t most = INT64_MAX;
  for (const std::int64_t divisor :
       {std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::int64_t{1} << 62,
        (std::int64_t{1} << 62) + 1, most - 1, most}) {
    for (const std::int64_t dividend :
         {std::int64_t{0}, std::int64_t{1}, divisor - 1, divisor, most - 1, most}) {
      check(dividend, divisor);
    }
  }
}

}  // namespace
}  // namespace shardwise::detail
