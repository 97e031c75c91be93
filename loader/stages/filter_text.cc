#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <compare>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "shardwise/loader/stages/filter.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

constexpr std::size_t kMostFilterCharacters = std::size_t{64} << 10;
constexpr int kMostFilterDepth = 100;

using FilterNumber = std::variant<std::int64_t, std::uint64_t, double>;

std::partial_ordering compare_filter_numbers(const FilterNumber& left, const FilterNumber& right) {
  return std::visit(
      []<class A, class B>(A a, B b) -> std::partial_ordering {
        if constexpr (std::is_same_v<A, double> || std::is_same_v<B, double>) {
          return static_cast<double>(a) <=> static_cast<double>(b);
        } else {
          if (std::cmp_less(a, b)) return std::partial_ordering::less;
          return std::cmp_equal(a, b) ? std::partial_ordering::equivalent
                                      : std::partial_ordering::greater;
        }
      },
      left, right);
}

FilterNumber filter_number_of(const FieldValue& value) {
  const DType dtype = value.field->dtype;
  const auto as = [&]<class T>(DType type, T result) {
    convert(dtype, value.data.data(), type, reinterpret_cast<std::byte*>(&result), 1);
    return FilterNumber(result);
  };
  switch (dtype) {
    case DType::f64:
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return as(DType::f64, 0.0);
    case DType::u64:
      return as(DType::u64, std::uint64_t{0});
    default:
      return as(DType::i64, std::int64_t{0});
  }
}

// An expression is a list of nodes; a node's children come before it. "a && b && c" is one node, so
// that the depth is the depth of the parentheses.
struct FilterNode {
  enum class Kind { both, either, negation, comparison, list };
  Kind kind;
  std::vector<std::size_t> children = {};  // nodes
  std::size_t value = 0;       // index of the field or length, for comparisons and lists
  bool is_length = false;      // `value` is a length
  std::string operation = {};  // of a comparison
  std::vector<FilterNumber> numbers = {};
};

bool filter_compares(std::string_view operation, std::partial_ordering order) {
  if (operation == "==") return order == 0;
  if (operation == "!=") return order != 0;
  if (operation == "<") return order < 0;
  if (operation == "<=") return order <= 0;
  if (operation == ">") return order > 0;
  return order >= 0;
}

bool filter_holds(std::span<const FilterNode> nodes, std::size_t node, std::size_t fields,
                  std::span<const FieldValue> values) {
  const FilterNode& at = nodes[node];
  const auto child_holds = [&](std::size_t child) {
    return filter_holds(nodes, child, fields, values);
  };
  switch (at.kind) {
    case FilterNode::Kind::both:
      return std::ranges::all_of(at.children, child_holds);
    case FilterNode::Kind::either:
      return std::ranges::any_of(at.children, child_holds);
    case FilterNode::Kind::negation:
      return !child_holds(at.children[0]);
    default:
      break;
  }
  const FilterNumber value = at.is_length ? FilterNumber(values[fields + at.value].length)
                                          : filter_number_of(values[at.value]);
  return std::ranges::any_of(at.numbers, [&](const FilterNumber& number) {
    return filter_compares(at.operation, compare_filter_numbers(value, number));
  });
}

class FilterParser {
 public:
  FilterParser(std::string_view text, std::span<const Field> fields)
      : text_(text), fields_(fields) {
    if (text.size() > kMostFilterCharacters) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("filter: the text has {} characters, needed is {} or fewer",
                              text.size(), kMostFilterCharacters));
    }
    advance();
  }

  RecordPredicate parse() {
    const std::size_t root = either(0);
    if (kind_ != Token::end) needs("the end, && or ||");
    RecordPredicate predicate;
    predicate.name = std::move(name_);
    predicate.fields = std::move(field_names_);
    predicate.lengths = std::move(length_names_);
    predicate.keep = [nodes = std::make_shared<const std::vector<FilterNode>>(std::move(nodes_)),
                      root, fields = predicate.fields.size()](std::span<const FieldValue> values) {
      return filter_holds(*nodes, root, fields, values);
    };
    return predicate;
  }

 private:
  enum class Token { end, name, quoted, number, symbol };

  [[noreturn]] void needs(std::string_view what) const {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("filter \"{}\": at character {}: found {}, needed is {}", text_,
                            token_begin_ + 1,
                            kind_ == Token::end ? "the end" : fmt::format("\"{}\"", token_), what));
  }

  // Reads the next token.
  void advance() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t')) ++at_;
    token_begin_ = at_;
    if (at_ == text_.size()) {
      kind_ = Token::end;
      token_ = {};
      return;
    }
    const char first = text_[at_];
    std::size_t end = at_ + 1;
    if (is_letter(first)) {
      kind_ = Token::name;
      while (end < text_.size() && is_name(text_[end])) ++end;
    } else if (first == '"') {
      kind_ = Token::quoted;
      end = text_.find('"', end);
      if (end == std::string_view::npos) {
        token_ = text_.substr(at_);
        needs("a second quotation mark");
      }
      ++end;
    } else if (is_digit(first) || first == '-' || first == '+' || first == '.') {
      kind_ = Token::number;
      while (end < text_.size() && (is_name(text_[end]) || is_sign_of_exponent(end))) ++end;
    } else {
      kind_ = Token::symbol;
      const std::string_view two = text_.substr(at_, 2);
      for (const std::string_view known : {"==", "!=", "<=", ">=", "&&", "||"}) {
        if (two == known) end = at_ + 2;
      }
    }
    token_ = text_.substr(at_, end - at_);
    at_ = end;
  }
  // Adds the token's text to the name, so that blanks do not change the name.
  void consume() {
    if (!name_.empty()) name_ += ' ';
    name_ += token_;
    advance();
  }
  bool accept(std::string_view symbol) {
    if (kind_ != Token::symbol || token_ != symbol) return false;
    consume();
    return true;
  }
  void expect(std::string_view symbol) {
    if (!accept(symbol)) needs(fmt::format("\"{}\"", symbol));
  }

  // True if the next character after the token and blanks is `wanted`.
  bool next_is(char wanted) const {
    const std::size_t next = text_.find_first_not_of(" \t", at_);
    return next != std::string_view::npos && text_[next] == wanted;
  }

  static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  }
  static bool is_digit(char c) { return c >= '0' && c <= '9'; }
  static bool is_name(char c) { return is_letter(c) || is_digit(c) || c == '.' || c == '/'; }
  bool is_sign_of_exponent(std::size_t at) const {
    return (text_[at] == '-' || text_[at] == '+') && (text_[at - 1] == 'e' || text_[at - 1] == 'E');
  }

  std::size_t add(FilterNode node) {
    nodes_.push_back(std::move(node));
    return nodes_.size() - 1;
  }

  std::size_t either(int depth) {
    return joined(FilterNode::Kind::either, "||", [&] {
      return joined(FilterNode::Kind::both, "&&", [&] { return unary(depth); });
    });
  }
  template <class Child>
  std::size_t joined(FilterNode::Kind kind, std::string_view symbol, const Child& child) {
    std::vector<std::size_t> children{child()};
    while (accept(symbol)) children.push_back(child());
    if (children.size() == 1) return children[0];
    return add({.kind = kind, .children = std::move(children)});
  }
  std::size_t unary(int depth) {
    if (depth > kMostFilterDepth) needs(fmt::format("no more than {} levels", kMostFilterDepth));
    if (accept("!")) {
      const std::size_t child = unary(depth + 1);
      return add({.kind = FilterNode::Kind::negation, .children = {child}});
    }
    if (accept("(")) {
      const std::size_t child = either(depth + 1);
      expect(")");
      return child;
    }
    return comparison();
  }

  std::size_t comparison() {
    FilterNode node{.kind = FilterNode::Kind::comparison};
    operand(node);
    if (kind_ == Token::name && token_ == "in") {
      node.kind = FilterNode::Kind::list;
      node.operation = "==";
      consume();
      do {
        node.numbers.push_back(number());
      } while (accept(","));
      return add(std::move(node));
    }
    constexpr std::array<std::string_view, 6> kOperations{"==", "!=", "<=", ">=", "<", ">"};
    if (kind_ != Token::symbol || std::ranges::find(kOperations, token_) == kOperations.end()) {
      needs("a comparison (==, !=, <, <=, >, >=) or \"in\"");
    }
    node.operation = token_;
    consume();
    node.numbers.push_back(number());
    return add(std::move(node));
  }

  // A name, or length(name).
  void operand(FilterNode& node) {
    if (kind_ == Token::name && token_ == "length" && next_is('(')) {
      consume();
      expect("(");
      node.is_length = true;
      const Field& field = named_field();
      if (field.shape.empty())
        needs(fmt::format("a field with a dim: \"{}\" has none", field.name));
      node.value = index_in(length_names_, field.name);
      consume();
      expect(")");
      return;
    }
    const Field& field = named_field();
    if (num_elements(field.shape) != 1) {
      needs(fmt::format("a field of one element: \"{}\" has shape {}", field.name,
                        to_string(field.shape)));
    }
    if (!is_computed(field.dtype)) {
      throw Error(
          ErrorCode::unsupported,
          fmt::format("filter \"{}\": field \"{}\" is {}, needed is a type that is computed with",
                      text_, field.name, name(field.dtype)));
    }
    node.value = index_in(field_names_, field.name);
    consume();
  }

  // The field that the token names; does not consume the token.
  const Field& named_field() const {
    if (kind_ != Token::name && kind_ != Token::quoted) needs("a field's name");
    std::string_view wanted = token_;
    if (kind_ == Token::quoted) wanted = wanted.substr(1, wanted.size() - 2);
    std::string known;
    for (const Field& field : fields_) {
      if (field.name == wanted) return field;
      known += fmt::format("{}\"{}\"", known.empty() ? "" : ", ", field.name);
    }
    throw Error(ErrorCode::no_such_name, fmt::format("filter \"{}\": there is no field \"{}\"; the "
                                                     "source has {}",
                                                     text_, wanted, known));
  }

  static std::size_t index_in(std::vector<std::string>& names, const std::string& field) {
    const auto found = std::ranges::find(names, field);
    const std::size_t index = static_cast<std::size_t>(found - names.begin());
    if (found == names.end()) names.push_back(field);
    return index;
  }

  FilterNumber number() {
    const std::optional<FilterNumber> value = parse_number(token_);
    if (kind_ != Token::number || !value) needs("a number");
    consume();
    return *value;
  }
  static std::optional<FilterNumber> parse_number(std::string_view text) {
    if (text.starts_with('+')) text.remove_prefix(1);
    const auto parsed = [&]<class T>(T value) -> std::optional<FilterNumber> {
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
      if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
      return value;
    };
    if (const auto value = parsed(std::int64_t{0})) return value;
    if (const auto value = parsed(std::uint64_t{0})) return value;
    return parsed(0.0);
  }

  std::string_view text_;
  std::span<const Field> fields_;
  std::size_t at_ = 0, token_begin_ = 0;
  Token kind_ = Token::end;
  std::string_view token_;
  std::string name_;
  std::vector<std::string> field_names_, length_names_;
  std::vector<FilterNode> nodes_;
};

}  // namespace

RecordPredicate parse_filter(std::string_view text, std::span<const Field> fields) {
  return FilterParser(text, fields).parse();
}

}  // namespace shardwise
