#include "shardwise/reshape/detail/edits/edit_text.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "shardwise/shard/text.h"

namespace shardwise {
namespace {

[[noreturn]] void refuse(std::string_view kind, std::string_view text, std::string_view needed) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} {}: needed is {}", kind, reshape_detail::clipped(text), needed));
}

/// The two sides of a rule.
std::pair<std::string, std::string> halves(std::string_view kind, std::string_view text,
                                           std::string_view needed) {
  const std::vector<std::string_view> sides = split(text, '=');
  if (sides.size() != 2 || sides[0].empty() || sides[1].empty()) {
    refuse(kind, text,
           fmt::format("{}, with one \"=\" (\"?\" in the pattern matches another one)", needed));
  }
  return {std::string(sides[0]), std::string(sides[1])};
}

/// Names or patterns between commas; empty if one is empty.
std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  for (const std::string_view word : split(text, ',')) {
    if (word.empty()) return {};
    words.emplace_back(word);
  }
  return words;
}

template <class Number>
std::optional<std::vector<Number>> numbers_of(std::string_view text) {
  std::vector<Number> numbers;
  for (const std::string_view word : split(text, ',')) {
    const std::optional<std::int64_t> number = parse_count(word);
    if (!number) return std::nullopt;
    numbers.push_back(static_cast<Number>(*number));
  }
  return numbers;
}

/// A dim, which may be counted from the end.
std::optional<std::int64_t> parse_dim(std::string_view text) {
  const bool from_end = text.starts_with('-');
  const std::optional<std::int64_t> dim = parse_count(text.substr(from_end ? 1 : 0));
  if (!dim || (from_end && *dim == 0)) return std::nullopt;
  return from_end ? -*dim : *dim;
}

/// Takes away a "+" before a dim; true if there was one.
bool takes_plus(std::string_view& text) {
  const bool has_plus = text.starts_with('+');
  if (has_plus) text.remove_prefix(1);
  return has_plus;
}

/// Splits at the last "@"; without one, the second part is empty.
std::pair<std::string_view, std::string_view> before_and_after_at(std::string_view text) {
  const std::size_t at = text.rfind('@');
  if (at == std::string_view::npos) return {text, {}};
  return {text.substr(0, at), text.substr(at + 1)};
}

}  // namespace

TensorEdits::Rename TensorEdits::Rename::parse(std::string_view text) {
  auto [pattern, name] = halves("rename", text, "PATTERN=NAME");
  return {std::move(pattern), std::move(name)};
}

TensorEdits::Cast TensorEdits::Cast::parse(std::string_view text) {
  for (const DType dtype : all_dtypes()) {
    if (text == name(dtype)) return {"*", dtype};
  }
  auto [pattern, dtype] = halves("cast", text, "PATTERN=DTYPE");
  return {std::move(pattern), parse_dtype(dtype)};
}

TensorEdits::Transpose TensorEdits::Transpose::parse(std::string_view text) {
  constexpr std::string_view kNeeded = "PATTERN=DIM,DIM,... as \"*.kernel=1,0\"";
  auto [pattern, dims] = halves("transpose", text, kNeeded);
  auto order = numbers_of<std::size_t>(dims);
  if (!order) refuse("transpose", text, kNeeded);
  return {std::move(pattern), *std::move(order)};
}

TensorEdits::Resize TensorEdits::Resize::parse(std::string_view text) {
  constexpr std::string_view kNeeded =
      "PATTERN=pad:EXTENT,... or PATTERN=slice:EXTENT,..., \"-\" for an extent that stays, as "
      "\"*embed*=pad:50304,-\"";
  auto [pattern, change] = halves("resize", text, kNeeded);
  const std::size_t colon = change.find(':');
  const std::string_view how = std::string_view(change).substr(0, colon);
  Resize rule{.pattern = std::move(pattern), .how = how == "pad" ? How::pad : How::slice};
  bool fits = colon != std::string::npos && (how == "pad" || how == "slice");
  if (fits) {
    for (const std::string_view word : split(std::string_view(change).substr(colon + 1), ',')) {
      const std::optional<std::int64_t> extent = parse_count(word);
      fits = fits && (extent || word == "-");
      rule.extents.push_back(extent.value_or(kSame));
    }
  }
  if (!fits) refuse("resize", text, kNeeded);
  return rule;
}

TensorEdits::Split TensorEdits::Split::parse(std::string_view text) {
  constexpr std::string_view kNeeded =
      "PATTERN=NAME,NAME,...@DIM, ...@DIM:EXTENT,EXTENT,... or ...@+DIM, as "
      "\"*.qkv=*.q,*.k,*.v@0\"";
  auto [pattern, made] = halves("split", text, kNeeded);
  auto [names, where] = before_and_after_at(made);
  const bool takes_dim = takes_plus(where);
  const std::size_t colon = where.find(':');
  const std::optional<std::int64_t> dim = parse_dim(where.substr(0, colon));
  Split rule{.pattern = std::move(pattern), .names = words_of(names), .dim = dim.value_or(0)};
  bool fits = dim && !rule.names.empty();
  if (colon != std::string_view::npos) {
    auto extents = numbers_of<std::int64_t>(where.substr(colon + 1));
    fits = fits && extents && extents->size() == rule.names.size();
    if (fits) rule.extents = *std::move(extents);
  }
  rule.takes_dim = takes_dim;
  if (!fits) refuse("split", text, kNeeded);
  return rule;
}

TensorEdits::Join TensorEdits::Join::parse(std::string_view text) {
  constexpr std::string_view kNeeded =
      "PATTERN,PATTERN,...=NAME@DIM or ...@+DIM, as \"*.q,*.k,*.v=*.qkv@0\"";
  const auto [patterns, made] = halves("join", text, kNeeded);
  auto [name, where] = before_and_after_at(made);
  const bool adds_dim = takes_plus(where);
  const std::optional<std::int64_t> dim = parse_dim(where);
  Join rule{.patterns = words_of(patterns),
            .name = std::string(name),
            .dim = dim.value_or(0),
            .adds_dim = adds_dim};
  if (!dim || rule.patterns.empty() || rule.name.empty()) refuse("join", text, kNeeded);
  return rule;
}

namespace reshape_detail {

std::string clipped(std::string_view text) {
  constexpr std::size_t kMostShown = 60;  // it ends up on a terminal
  if (text.size() <= kMostShown) return fmt::format("{:?}", text);
  return fmt::format("{:?}...", text.substr(0, kMostShown));
}

std::string rule_text(const TensorEdits::Rename& rule) { return rule.pattern + "=" + rule.name; }
std::string rule_text(const TensorEdits::Cast& rule) {
  return rule.pattern + "=" + std::string(name(rule.dtype));
}
std::string rule_text(const TensorEdits::Transpose& rule) {
  return fmt::format("{}={}", rule.pattern, fmt::join(rule.order, ","));
}
std::string rule_text(const TensorEdits::Resize& rule) {
  std::string text = rule.pattern + (rule.how == TensorEdits::Resize::How::pad ? "=pad" : "=slice");
  char before = ':';
  for (const std::int64_t extent : rule.extents) {
    text += before;
    text += extent == TensorEdits::Resize::kSame ? "-" : std::to_string(extent);
    before = ',';
  }
  return text;
}
std::string rule_text(const TensorEdits::Split& rule) {
  return fmt::format("{}={}@{}{}{}{}", rule.pattern, fmt::join(rule.names, ","),
                     rule.takes_dim ? "+" : "", rule.dim, rule.extents.empty() ? "" : ":",
                     fmt::join(rule.extents, ","));
}
std::string rule_text(const TensorEdits::Join& rule) {
  return fmt::format("{}={}@{}{}", fmt::join(rule.patterns, ","), rule.name,
                     rule.adds_dim ? "+" : "", rule.dim);
}

}  // namespace reshape_detail
}  // namespace shardwise
