#include "shardwise/runtime/graph/attributes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <system_error>
#include <utility>

#include "shardwise/runtime/graph/detail/attribute_fields.h"
#include "shardwise/runtime/graph/detail/line_reader.h"
#include "shardwise/shard/host/random.h"

namespace shardwise {
namespace {

// The bits of a NaN that arithmetic on doubles gives, apart from the sign.
constexpr std::uint64_t kUsualNaN = 0x7ff8000000000000, kSignBit = std::uint64_t{1} << 63;

[[noreturn]] void fail_equation(std::string_view text, const std::string& problem) {
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("equation \"{}\": {}; needed is one such as \"btd,df->btf\"", text, problem));
}

bool has(std::string_view letters, char letter) {
  return letters.find(letter) != std::string_view::npos;
}

void check_letters(std::string_view text, std::string_view operand) {
  for (std::size_t i = 0; i < operand.size(); ++i) {
    const char c = operand[i];
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'))) {
      fail_equation(text, fmt::format("'{}' is not a letter", c));
    }
    if (has(operand.substr(i + 1), c)) {
      fail_equation(text, fmt::format("'{}' comes twice in \"{}\"", c, operand));
    }
  }
}

/// Writes the fields of attribute_fields.h.
class FieldWriter {
 public:
  std::string take() { return std::move(text_); }

  void list(std::string_view name, const Dims& dims) {
    if (!dims.empty()) text_ += fmt::format(" {}={}", name, to_string(dims));
  }
  void numbers(std::string_view name, std::same_as<std::int64_t> auto... values) {
    list(name, Dims{values...});
  }
  void number(const Scalar& number) { add(number.to_string()); }
  void number_but_zero(const Scalar& number) {
    if (!(number == Scalar())) add(number.to_string());
  }
  void literal(const LiteralAttributes& a) { add(fmt::format("{:016x}", a.hash())); }
  void text(const Equation& equation) { add(detail::quoted(equation.to_string())); }
  void text(const PartitionSpec& spec) { add(detail::quoted(spec.to_string())); }
  void text(const std::vector<std::string>& axes) {
    add(detail::quoted(fmt::format("{}", fmt::join(axes, "+"))));
  }
  void dtype(std::string_view word, const std::optional<DType>& dtype) {
    if (dtype) text_ += fmt::format(" {} {}", word, name(*dtype));
  }
  void count(std::string_view name, std::int64_t number) {
    if (number != 1) text_ += fmt::format(" {}={}", name, number);
  }
  void word(auto enumerator, std::span<const std::string_view> words) {
    const std::string_view word = words[static_cast<std::size_t>(enumerator)];
    if (!word.empty()) add(word);
  }
  void flag(std::string_view word, bool is_set) {
    if (is_set) add(word);
  }
  void body(const std::shared_ptr<const Graph>&) {}

 private:
  void add(std::string_view word) { (text_ += ' ') += word; }

  std::string text_;
};

}  // namespace

LiteralAttributes::LiteralAttributes(std::span<const std::byte> bytes)
    : bytes_(std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end())) {
  // Not std::hash, which may differ between builds: files name literals by this hash.
  Mixer mixer;
  mixer.add(bytes.size());
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, std::min(sizeof word, bytes.size() - at));
    mixer.add(word);
  }
  hash_ = mixer.state();
}

bool LiteralAttributes::operator==(const LiteralAttributes& other) const {
  return bytes_ == other.bytes_ || (hash_ == other.hash_ && *bytes_ == *other.bytes_);
}

double Scalar::as_double() const {
  double value = 0;
  write(DType::f64, reinterpret_cast<std::byte*>(&value));
  return value;
}

void Scalar::write(DType dtype, std::byte* element) const {
  convert(dtype_, reinterpret_cast<const std::byte*>(&bits_), dtype, element, 1);
}

std::optional<Scalar> Scalar::of(DType dtype) const {
  std::uint64_t element = 0;  // holds an element of any dtype that kernels compute with
  std::byte* const bytes = reinterpret_cast<std::byte*>(&element);
  const auto widened = [&](auto value) {
    convert(dtype, bytes, Scalar(value).dtype(), reinterpret_cast<std::byte*>(&value), 1);
    return Scalar(value);
  };
  if (is_floating(dtype)) {
    if (dtype_ == DType::f64) return *this;
    write(dtype, bytes);
    return widened(0.0);
  }
  write(dtype, bytes);
  const bool is_signed = is_signed_integer(dtype);
  const Scalar held = is_signed ? widened(std::int64_t{0}) : widened(std::uint64_t{0});
  // Between i64 and u64 equal bits are equal numbers if none is negative.
  if (dtype_ != DType::f64) {
    const bool negative = static_cast<std::int64_t>(bits_) < 0;
    if (held.bits_ != bits_ || (negative && held.dtype_ != dtype_)) return std::nullopt;
  } else if (held.as_double() != as_double() || as_double() == 0x1p64 ||
             (is_signed && as_double() == 0x1p63)) {
    return std::nullopt;  // the largest integer is rounded up to a power of two
  }
  return held;
}

std::string Scalar::to_string() const {
  switch (dtype_) {
    case DType::i64:
      return fmt::format("{}", static_cast<std::int64_t>(bits_));
    case DType::u64:
      return fmt::format("{}", bits_);
    default:
      break;
  }
  const auto value = std::bit_cast<double>(bits_);
  const bool is_usual = (bits_ & ~kSignBit) == kUsualNaN;
  if (std::isnan(value) && !is_usual) return fmt::format("nan({:#018x})", bits_);
  return fmt::format("{}", value);
}

std::optional<Scalar> Scalar::parse(std::string_view text, DType dtype) {
  const char *const begin = text.data(), *const end = begin + text.size();
  const auto read = [&](auto value, auto... base) -> std::optional<Scalar> {
    const auto [stopped, error] = std::from_chars(begin, end, value, base...);
    if (error != std::errc{} || stopped != end) return std::nullopt;
    return Scalar(value);
  };
  if (!is_floating(dtype)) {
    return is_signed_integer(dtype) ? read(std::int64_t{0}) : read(std::uint64_t{0});
  }
  constexpr std::string_view kBits = "nan(0x";
  if (text.starts_with(kBits) && text.ends_with(')')) {
    text.remove_prefix(kBits.size());
    text.remove_suffix(1);
    std::uint64_t bits = 0;
    const char* const last = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), last, bits, 16);
    if (error != std::errc{} || stopped != last) return std::nullopt;
    const auto value = std::bit_cast<double>(bits);
    if (!std::isnan(value)) return std::nullopt;
    return Scalar::of_bits(bits);
  }
  if (text == "nan") return Scalar::of_bits(kUsualNaN);
  if (text == "-nan") return Scalar::of_bits(kUsualNaN | kSignBit);
  return read(0.0);
}

Equation Equation::parse(std::string_view text) {
  const std::size_t arrow = text.find("->");
  const std::size_t comma = text.find(',');
  if (arrow == std::string_view::npos || comma > arrow) {
    fail_equation(text, "it is not two operands and a result");
  }
  Equation equation{std::string(text.substr(0, comma)),
                    std::string(text.substr(comma + 1, arrow - comma - 1)),
                    std::string(text.substr(arrow + 2))};
  const auto& [lhs, rhs, result] = equation;
  for (const std::string& operand : {lhs, rhs, result}) check_letters(text, operand);
  for (const char c : result) {
    if (!has(lhs, c) && !has(rhs, c)) {
      fail_equation(text, fmt::format("'{}' is in the result alone", c));
    }
  }
  for (const char c : lhs + rhs) {
    if (!(has(lhs, c) && has(rhs, c)) && !has(result, c)) {
      fail_equation(text, fmt::format("'{}' is in one operand alone", c));
    }
  }
  return equation;
}

std::string Equation::to_string() const { return fmt::format("{},{}->{}", lhs, rhs, result); }

std::string to_string(const Attributes& attributes) {
  FieldWriter fields;
  std::visit([&](const auto& a) { detail::visit(fields, a); }, attributes);
  return fields.take();
}

}  // namespace shardwise
