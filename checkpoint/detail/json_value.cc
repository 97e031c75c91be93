#include "shardwise/checkpoint/detail/json_value.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

[[noreturn]] void corrupt(const std::string& message) { throw Error(ErrorCode::corrupt, message); }

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Length of the character that begins at text[at] in UTF-8; 0 where none does.
std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) -> unsigned {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0;
  };
  const auto follows = [&](std::size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first <= 0xDF) return follows(1) ? 2 : 0;
  if (first >= 0xE0 && first <= 0xEF) {
    const bool overlong = first == 0xE0 && second < 0xA0,
               surrogate = first == 0xED && second > 0x9F;
    return follows(1) && follows(2) && !overlong && !surrogate ? 3 : 0;
  }
  if (first >= 0xF0 && first <= 0xF4) {
    const bool overlong = first == 0xF0 && second < 0x90, too_big = first == 0xF4 && second > 0x8F;
    return follows(1) && follows(2) && follows(3) && !overlong && !too_big ? 4 : 0;
  }
  return 0;
}

void append_utf8(std::string& text, unsigned code) {
  const auto put = [&text](unsigned byte) { text += static_cast<char>(byte); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6);
    put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12);
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18);
    put(0x80 | (code >> 12 & 0x3F));
    put(0x80 | (code >> 6 & 0x3F));
    put(0x80 | (code & 0x3F));
  }
}

/// Whether a number that no double holds is too large, not too small: where its first digit other
/// than 0 stands, counted from the point.
bool is_too_large(std::string_view number) {
  std::int64_t before = 0, after = 0;
  bool point = false, seen = false;
  std::size_t at = 0;
  for (; at < number.size() && (number[at] | 0x20) != 'e'; ++at) {
    if (number[at] == '.') point = true;
    if (!is_digit(number[at])) continue;
    seen = seen || number[at] != '0';
    if (seen && !point) ++before;
    if (!seen && point) ++after;
  }
  std::int64_t exponent = 0;
  const bool negative = at + 1 < number.size() && number[at + 1] == '-';
  for (; at < number.size(); ++at) {
    if (is_digit(number[at]) && exponent < 1'000'000'000'000) {
      exponent = 10 * exponent + (number[at] - '0');
    }
  }
  return before - after + (negative ? -exponent : exponent) > 0;
}

// What a node can count.
constexpr std::uint32_t kMostCount = (std::uint32_t{1} << 29) - 1;

// Characters that stand for themselves in a string: no quote, backslash, control character or
// byte of a longer one.
constexpr std::array<bool, 256> kPlain = [] {
  std::array<bool, 256> plain{};
  for (std::size_t c = 0x20; c < 0x80; ++c) plain[c] = c != '"' && c != '\\';
  return plain;
}();

}  // namespace

/// Reads one text. Thread-compatible.
class JsonParser {
 public:
  using Kind = JsonValue::Kind;

  JsonParser(std::string_view text, int max_nesting, JsonDocument& document)
      : text_(text), most_(static_cast<std::size_t>(max_nesting)), document_(document) {}

  void run() {
    if (text_.starts_with("\xef\xbb\xbf")) corrupt("begins with a byte order mark");
    // A value and the comma behind it take two characters: so a node can count them.
    if (text_.size() > std::size_t{1} << 30) corrupt("is longer than 1 GiB");
    document_.nodes_.reserve(text_.size() / 6);  // as a manifest has them
    for (bool complete = value(); !open_.empty();) complete = complete ? after_value() : value();
    skip_blanks();
    if (at_ != text_.size()) refuse();
  }

 private:
  [[noreturn]] void refuse() const {
    corrupt(fmt::format("is not JSON: syntax error at byte {}", at_ + 1));
  }

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void expect(char c) {
    if (at_ >= text_.size() || text_[at_] != c) refuse();
    ++at_;
  }
  void skip_blanks() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  void add(Kind kind, std::size_t begin, std::uint32_t count = 0) {
    auto& nodes = document_.nodes_;
    JsonDocument::Node node{};
    node.begin = static_cast<std::uint32_t>(begin);
    node.bytes = static_cast<std::uint32_t>(at_ - begin);
    node.end = static_cast<std::uint32_t>(nodes.size() + 1);
    node.kind = kind;
    node.count = count & kMostCount;
    nodes.push_back(node);
  }

  // Reads a value and says true; or what a container begins with, up to its first element, and
  // says false. What is open is kept in a list, so that depth costs no stack.
  bool value() {
    skip_blanks();
    switch (peek()) {
      case '{':
        return open(Kind::object);
      case '[':
        return open(Kind::array);
      case '"':
        string();
        break;
      case 't':
        word("true", Kind::boolean);
        break;
      case 'f':
        word("false", Kind::boolean);
        break;
      case 'n':
        word("null", Kind::null);
        break;
      default:
        number();
    }
    return true;
  }

  bool open(Kind kind) {
    if (open_.size() >= most_) corrupt(fmt::format("is nested deeper than {} levels", most_));
    open_.push_back(static_cast<std::uint32_t>(document_.nodes_.size()));
    ++at_;
    add(kind, at_ - 1);
    skip_blanks();
    if (peek() == (kind == Kind::object ? '}' : ']')) {
      close();
      return true;
    }
    begin_element();
    return false;
  }

  // Up to the element's value.
  void begin_element() {
    JsonDocument::Node& node = document_.nodes_[open_.back()];
    ++node.count;
    if (node.kind == Kind::array) return;
    skip_blanks();
    if (peek() != '"') refuse();
    string();
    skip_blanks();
    expect(':');
  }

  // What follows a value: its container's end, then true; or what is before another element.
  bool after_value() {
    skip_blanks();
    if (peek() == ',') {
      ++at_;
      begin_element();
      return false;
    }
    if (peek() != (document_.nodes_[open_.back()].kind == Kind::object ? '}' : ']')) refuse();
    close();
    return true;
  }

  void close() {
    ++at_;
    JsonDocument::Node& node = document_.nodes_[open_.back()];
    node.bytes = static_cast<std::uint32_t>(at_ - node.begin);
    node.end = static_cast<std::uint32_t>(document_.nodes_.size());
    if (node.kind == Kind::object) check_keys(open_.back());
    open_.pop_back();
  }

  void check_keys(std::uint32_t object) {
    const auto& nodes = document_.nodes_;
    keys_.clear();
    for (std::uint32_t i = object + 1; i < nodes[object].end; i = nodes[i + 1].end) {
      keys_.push_back(JsonValue(document_, i).text());
    }
    constexpr std::size_t kFew = 16;
    if (keys_.size() > kFew) std::sort(keys_.begin(), keys_.end());
    const std::size_t reach = keys_.size() > kFew ? 1 : kFew;  // equal keys are that near
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      for (std::size_t j = i + 1; j < keys_.size() && j <= i + reach; ++j) {
        if (keys_[i] == keys_[j]) corrupt("has an object with the same key twice");
      }
    }
  }

  void word(std::string_view expected, Kind kind) {
    if (text_.substr(at_, expected.size()) != expected) refuse();
    at_ += expected.size();
    add(kind, at_ - expected.size());
  }

  void digits() {
    if (!is_digit(peek())) refuse();
    while (is_digit(peek())) ++at_;
  }

  void number() {
    const std::size_t begin = at_;
    if (peek() == '-') ++at_;
    if (peek() == '0') {
      ++at_;
    } else {
      digits();
    }
    if (peek() != '.' && (peek() | 0x20) != 'e' && at_ - begin < 18) {
      return add(Kind::number, begin);
    }
    if (peek() == '.') {
      ++at_;
      digits();
    }
    if ((peek() | 0x20) == 'e') {
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
    double parsed = 0;
    const std::string_view text = text_.substr(begin, at_ - begin);
    if (std::from_chars(text.data(), text.data() + text.size(), parsed).ec != std::errc() &&
        is_too_large(text)) {
      corrupt("is not usable JSON: a number is beyond the range of a double");
    }
    add(Kind::number, begin);
  }

  void string() {
    const std::size_t begin = at_++;
    while (at_ < text_.size() && kPlain[static_cast<unsigned char>(text_[at_])]) ++at_;
    if (peek() == '"') {
      ++at_;
      return add(Kind::string, begin);
    }
    std::string decoded(text_.substr(begin + 1, at_ - begin - 1));
    while (peek() != '"') {
      if (at_ >= text_.size() || static_cast<unsigned char>(text_[at_]) < 0x20) refuse();
      if (text_[at_] == '\\') {
        ++at_;
        escape(decoded);
        continue;
      }
      const std::size_t length = utf8_length(text_, at_);
      if (length == 0) refuse();
      decoded += text_.substr(at_, length);
      at_ += length;
    }
    ++at_;
    document_.decoded_.push_back(std::move(decoded));
    add(Kind::string, begin, static_cast<std::uint32_t>(document_.decoded_.size()));
  }

  void escape(std::string& decoded) {
    constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
    const char letter = peek();
    if (letter == 'u') {
      ++at_;
      unsigned code = four_digits();
      if (code >= 0xD800 && code < 0xDC00) {
        expect('\\');
        expect('u');
        const unsigned low = four_digits();
        if (low < 0xDC00 || low > 0xDFFF) refuse();
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      } else if (code >= 0xDC00 && code <= 0xDFFF) {
        refuse();
      }
      append_utf8(decoded, code);
      return;
    }
    const std::size_t known = kLetters.find(letter);
    if (at_ >= text_.size() || known == std::string_view::npos) refuse();
    decoded += kMeanings[known];
    ++at_;
  }

  unsigned four_digits() {
    unsigned code = 0;
    const char* const begin = text_.data() + at_;
    if (text_.size() - at_ < 4 || std::from_chars(begin, begin + 4, code, 16).ptr != begin + 4) {
      refuse();
    }
    at_ += 4;
    return code;
  }

  std::string_view text_;
  std::size_t most_;
  JsonDocument& document_;
  std::size_t at_ = 0;
  std::vector<std::uint32_t> open_;
  std::vector<std::string_view> keys_;
};

JsonDocument::JsonDocument(std::string_view text, int max_nesting) : text_(text) {
  JsonParser(text, max_nesting, *this).run();
}

JsonValue::Kind JsonValue::kind() const { return document_->nodes_[node_].kind; }

const char* JsonValue::kind_name() const {
  constexpr const char* kNames[] = {"null", "boolean", "number", "string", "array", "object"};
  return kNames[static_cast<std::size_t>(kind())];
}

std::string_view JsonValue::raw() const {
  const JsonDocument::Node& node = document_->nodes_[node_];
  return document_->text_.substr(node.begin, node.bytes);
}

std::string_view JsonValue::text() const {
  const JsonDocument::Node& node = document_->nodes_[node_];
  if (node.count > 0) return document_->decoded_[node.count - 1];
  return {document_->text_.data() + node.begin + 1, node.bytes - 2};
}

std::optional<std::int64_t> JsonValue::to_int64() const {
  const std::string_view text = raw();
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (!is(Kind::number) || error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

bool JsonValue::is_integer() const {
  if (!is(Kind::number)) return false;
  if (to_int64().has_value()) return true;
  const std::string_view text = raw();
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

std::size_t JsonValue::size() const { return document_->nodes_[node_].count; }

std::optional<JsonValue> JsonValue::find(std::string_view key) const {
  const auto& nodes = document_->nodes_;
  for (std::uint32_t i = node_ + 1; i < nodes[node_].end; i = nodes[i + 1].end) {
    if (JsonValue(*document_, i).text() == key) return JsonValue(*document_, i + 1);
  }
  return {};
}

JsonValue::Iterator JsonValue::begin() const { return Iterator({*document_, node_ + 1}); }
JsonValue::Iterator JsonValue::end() const {
  return Iterator({*document_, document_->nodes_[node_].end});
}

JsonValue::Iterator& JsonValue::Iterator::operator++() {
  value_.node_ = value_.document_->nodes_[value_.node_].end;
  return *this;
}

bool is_utf8(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = utf8_length(text, at);
    if (length == 0) return false;
    at += length;
  }
  return true;
}

}  // namespace shardwise::detail
