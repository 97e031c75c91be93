#include "shardwise/loader/sources/detail/number_text.h"

#include <charconv>
#include <cstdint>
#include <cstring>
#include <system_error>

namespace shardwise::detail {
namespace {

template <class T>
bool read_as(std::string_view text, std::byte* out) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || at != end) return false;
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
      return true;
    }
  }
}

}  // namespace shardwise::detail
