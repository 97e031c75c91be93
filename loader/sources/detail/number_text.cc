#include "shardwise/loader/sources/detail/number_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <type_traits>

namespace shardwise::detail {
namespace {

// True if a number that no float holds is below 1, so too small and not too large.
bool is_below_one(std::string_view number) {
  const std::size_t e = std::min(number.find_first_of("eE"), number.size());
  const std::string_view digits = number.substr(0, e);
  const auto point = static_cast<std::int64_t>(std::min(digits.find('.'), digits.size()));
  const auto first = static_cast<std::int64_t>(digits.find_first_of("123456789"));
  std::string_view power = number.substr(std::min(e + 1, number.size()));
  if (power.starts_with('+')) power.remove_prefix(1);
  std::int64_t exponent = 0;
  const auto [at, error] = std::from_chars(power.data(), power.data() + power.size(), exponent);
  if (error == std::errc::result_out_of_range) return power.starts_with('-');
  return exponent < (first < point ? first + 1 - point : first - point);
}

template <class T>
bool read_as(std::string_view text, std::byte* out) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  const bool is_too_small =
      std::is_floating_point_v<T> && error == std::errc::result_out_of_range && is_below_one(text);
  if (at != end || (error != std::errc() && !is_too_small)) return false;
  if (is_too_small) value = static_cast<T>(text.starts_with('-') ? -0.0 : 0.0);
  std::memcpy(out, &value, sizeof value);
  return true;
}

bool read_truth(std::string_view text, std::byte* out) {
  const bool is_true = text == "1" || text == "true" || text == "True";
  if (!is_true && text != "0" && text != "false" && text != "False") return false;
  *out = std::byte{is_true};
  return true;
}

}  // namespace

bool read_number(std::string_view text, DType dtype, std::byte* out) {
  switch (dtype) {
    case DType::f64:
      return read_as<double>(text, out);
    case DType::f32:
      return read_as<float>(text, out);
    case DType::i64:
      return read_as<std::int64_t>(text, out);
    case DType::i32:
      return read_as<std::int32_t>(text, out);
    case DType::i16:
      return read_as<std::int16_t>(text, out);
    case DType::i8:
      return read_as<std::int8_t>(text, out);
    case DType::u64:
      return read_as<std::uint64_t>(text, out);
    case DType::u32:
      return read_as<std::uint32_t>(text, out);
    case DType::u16:
      return read_as<std::uint16_t>(text, out);
    case DType::u8:
      return read_as<std::uint8_t>(text, out);
    case DType::boolean:
      return read_truth(text, out);
    default: {  // f16 and bf16
      double value = 0;
      if (!read_as<double>(text, reinterpret_cast<std::byte*>(&value))) return false;
      convert(DType::f64, reinterpret_cast<const std::byte*>(&value), dtype, out, 1);
      double rounded = 0;
      convert(dtype, out, DType::f64, reinterpret_cast<std::byte*>(&rounded), 1);
      return std::isfinite(rounded) || !std::isfinite(value);
    }
  }
}

bool NumberTypes::add(std::string_view number) {
  if (add_whole(number)) return true;
  std::array<std::byte, sizeof(double)> value;
  if (!read_number(number, DType::f64, value.data())) return false;
  add_real();
  return true;
}

bool NumberTypes::add_whole(std::string_view number) {
  constexpr std::size_t kShort = 15;  // digits that each of the three types holds
  const std::size_t sign = number.starts_with('-') ? 1 : 0;
  if (number.size() == sign) return false;
  for (std::size_t i = sign; i < number.size(); ++i) {
    if (number[i] < '0' || number[i] > '9') return false;
  }
  if (number.size() <= kShort) {
    all_u64_ = all_u64_ && sign == 0;
    return true;
  }
  std::array<std::byte, sizeof(double)> value;
  if (!read_number(number, DType::f64, value.data())) return false;
  all_i64_ = all_i64_ && read_number(number, DType::i64, value.data());
  all_u64_ = all_u64_ && read_number(number, DType::u64, value.data());
  number.remove_prefix(std::min(number.find_first_not_of('0', sign), number.size()));
  constexpr std::string_view kMost = "9007199254740992";  // 2^53
  has_inexact_ = has_inexact_ || number.size() > kMost.size() ||
                 (number.size() == kMost.size() && number > kMost);
  return true;
}

void NumberTypes::add(const NumberTypes& others) {
  all_i64_ = all_i64_ && others.all_i64_;
  all_u64_ = all_u64_ && others.all_u64_;
  has_inexact_ = has_inexact_ || others.has_inexact_;
}

std::optional<DType> NumberTypes::type() const {
  if (all_i64_) return DType::i64;
  if (all_u64_) return DType::u64;
  if (has_inexact_) return std::nullopt;
  return DType::f64;
}

std::string no_number_type(std::string_view field) {
  return fmt::format(
      "field \"{}\" has whole numbers beyond 2^53, and others or none: found no type that holds "
      "them all, needed one that is given, as {}=f64 or {}=text",
      field, field, field);
}

}  // namespace shardwise::detail
