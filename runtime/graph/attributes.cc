#include "shardwise/runtime/graph/attributes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "shardwise/shard/host/random.h"

namespace shardwise {
namespace {

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

// ---- For dumps.

std::string list(std::string_view name, const Dims& dims) {
  return dims.empty() ? "" : fmt::format(" {}={}", name, to_string(dims));
}

std::string shown(const NoAttributes&) { return {}; }
std::string shown(const NumberAttributes& a) { return ' ' + a.number.to_string(); }
std::string shown(const LiteralAttributes& a) { return fmt::format(" {:016x}", a.hash()); }
std::string shown(const DimAttributes& a) { return list("dims", {a.dim}); }
std::string shown(const DimsAttributes& a) { return list("dims", a.dims); }
std::string shown(const SliceAttributes& a) {
  return list("begin", a.begin) + list("end", a.end) + list("stride", a.stride);
}
std::string shown(const PadAttributes& a) {
  const std::string dims = list("begin", a.low) + list("end", a.high) + list("stride", a.stride);
  return a.number == Scalar() ? dims : dims + ' ' + a.number.to_string();
}
std::string shown(const DotAttributes& a) {
  const std::string result = a.result ? fmt::format(" in {}", name(*a.result)) : "";
  return fmt::format(" \"{}\"{}", a.equation.to_string(), result);
}
std::string shown(const ConvolutionAttributes& a) {
  std::string text = list("lhs", a.lhs) + list("rhs", a.rhs) + list("out", a.out) +
                     list("stride", a.stride) + list("low", a.low) + list("high", a.high) +
                     list("lhs_dilation", a.lhs_dilation) + list("rhs_dilation", a.rhs_dilation);
  if (a.feature_groups != 1) text += fmt::format(" feature_groups={}", a.feature_groups);
  if (a.batch_groups != 1) text += fmt::format(" batch_groups={}", a.batch_groups);
  return text;
}
std::string shown(const WindowAttributes& a) {
  return list("window", a.window) + list("stride", a.stride) + list("low", a.low) +
         list("high", a.high) + list("dilation", a.dilation);
}
std::string shown(const ScatterAttributes& a) { return list("dims", {a.dim, a.extent}); }
std::string shown(const ScatterIntoAttributes& a) {
  static constexpr std::string_view kCombinations[] = {"set", "add", "mul", "min", "max"};
  static constexpr std::string_view kModes[] = {"", " clip", " drop"};
  return fmt::format("{} {}{}", list("dims", {a.dim}),
                     kCombinations[static_cast<std::size_t>(a.combination)],
                     kModes[static_cast<std::size_t>(a.mode)]);
}
std::string shown(const ShapeAttributes& a) { return list("end", a.shape); }
std::string shown(const SortAttributes& a) {
  return list("dims", {a.dim}) + (a.descending ? " descending" : "");
}
std::string shown(const CumulativeAttributes& a) {
  return list("dims", {a.dim}) + (a.reverse ? " reverse" : "");
}
std::string shown(const ManualAttributes& a) {
  return fmt::format(" \"{}\" dims=[{}]{}", a.spec.to_string(), a.replicas, a.sums ? " sums" : "");
}
std::string shown(const ReduceAttributes& a) {
  return fmt::format(" \"{}\" {}", fmt::join(a.axes, "+"), static_cast<int>(a.reduction));
}

}  // namespace

LiteralAttributes::LiteralAttributes(std::span<const std::byte> bytes)
    : bytes_(std::make_shared<const std::vector<std::byte>>(bytes.begin(), bytes.end())) {
  Mixer mixer;
  mixer.add(std::string_view(reinterpret_cast<const char*>(bytes_->data()), bytes_->size()));
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
  std::uint64_t element = 0;  // has room for an element of any dtype that is computed with
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
  const bool is_signed = dtype >= DType::i64 && dtype <= DType::i8;
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
      return fmt::format("{}", std::bit_cast<double>(bits_));
  }
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
  return std::visit([](const auto& a) { return shown(a); }, attributes);
}

}  // namespace shardwise
