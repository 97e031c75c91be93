#include "shardwise/loader/detail/engine/delivery_digest.h"

namespace shardwise::detail {
namespace {

constexpr Wide wide(std::uint64_t high, std::uint64_t low) {
  return static_cast<Wide>(high) << 64 | low;
}

constexpr Wide kLinear = wide(0x243f6a8885a308d3, 0x13198a2e03707345);
constexpr Wide kSquare = wide(0xa4093822299f31d0, 0x082efa98ec4e6c89);
constexpr Wide kCube = wide(0x452821e638d01377, 0xbe5466cf34e90c6d);

}  // namespace

Wide digest_of_sample(std::int64_t number) {
  const Wide n = static_cast<Wide>(number);
  return n * (kLinear + n * (kSquare + n * kCube));
}

// Dividing first avoids overflow: n (n - 1) is below 2^126.
Wide digest_of_prefix(std::int64_t end) {
  if (end == 0) return 0;
  const Wide n = static_cast<Wide>(end);
  const Wide sum = n * (n - 1) / 2;
  const Wide odd = 2 * n - 1;
  const Wide squares = sum % 3 == 0 ? sum / 3 * odd : sum * (odd / 3);
  return kLinear * sum + kSquare * squares + kCube * (sum * sum);
}

}  // namespace shardwise::detail
