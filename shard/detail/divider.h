#pragma once

#include <bit>
#include <cstdint>

namespace shardwise::detail {

/// Division by a number known only at run time, done as a multiplication: a mesh's strides divide
/// millions of positions. (Source: Granlund and Montgomery, "Division by invariant integers using
/// multiplication", PLDI 1994.)
///
/// Requires a divisor >= 1 and dividends from 0 to 2^63 - 1.
///
/// Immutable value type.
class Divider {
 public:
  Divider() = default;
  explicit Divider(std::int64_t divisor) : divisor_(divisor) {
    if (divisor == 1) return;
    const auto d = static_cast<std::uint64_t>(divisor);
    shift_ = static_cast<int>(std::bit_width(d - 1)) - 1;
    __extension__ using Wide = unsigned __int128;
    // 2^(64 + shift) / d; 2^63 for a power of two
    const std::uint64_t quotient = std::has_single_bit(d)
                                       ? std::uint64_t{1} << 63
                                       : static_cast<std::uint64_t>((Wide{1} << (64 + shift_)) / d);
    factor_ = quotient + 1;
  }

  std::int64_t divisor() const { return divisor_; }

  std::int64_t quotient(std::int64_t dividend) const {
    if (divisor_ == 1) return dividend;
    __extension__ using Wide = unsigned __int128;
    const Wide product = Wide{factor_} * static_cast<std::uint64_t>(dividend);
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(product >> 64) >> shift_);
  }

  std::int64_t remainder(std::int64_t dividend) const {
    return dividend - quotient(dividend) * divisor_;
  }

  /// The quotient rounded up.
  std::int64_t ceil(std::int64_t dividend) const {
    const std::int64_t floor = quotient(dividend);
    return floor + (floor * divisor_ != dividend);
  }

  bool operator==(const Divider& other) const { return divisor_ == other.divisor_; }

 private:
  std::int64_t divisor_ = 1;
  std::uint64_t factor_ = 0;
  int shift_ = 0;
};

}  // namespace shardwise::detail
