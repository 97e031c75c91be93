#include "shardwise/loader/sources/detail/json_scanner.h"

#include <utility>

#include "shardwise/storage/utf8.h"

namespace shardwise::detail {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

void JsonScanner::fail(std::string found) const { throw JsonFault{at_, std::move(found)}; }

void JsonScanner::skip_blanks() {
  while (at_ < text_.size() &&
         (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\r' || text_[at_] == '\n')) {
    ++at_;
  }
}

char JsonScanner::peek() {
  skip_blanks();
  return at_ < text_.size() ? text_[at_] : '\0';
}

bool JsonScanner::accept(char c) {
  if (peek() != c || at_ == text_.size()) return false;
  ++at_;
  return true;
}

void JsonScanner::expect(char c) {
  if (!accept(c)) fail(std::string("no '") + c + "'");
}

std::string_view JsonScanner::string(std::string& scratch) {
  expect('"');
  const std::size_t begin = at_;
  while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\') {
    if (static_cast<unsigned char>(text_[at_]) < 0x20) fail("a control character in a string");
    ++at_;
  }
  std::string_view value = text_.substr(begin, at_ - begin);
  if (at_ < text_.size() && text_[at_] == '\\') {
    scratch = value;
    while (at_ < text_.size() && text_[at_] != '"') {
      const char c = text_[at_];
      if (static_cast<unsigned char>(c) < 0x20) fail("a control character in a string");
      if (c == '\\') {
        append_escape(scratch);
      } else {
        scratch += c;
        ++at_;
      }
    }
    value = scratch;
  }
  if (at_ == text_.size()) fail("the end within a string");
  if (!is_utf8(value)) fail("a string that is not UTF-8");
  ++at_;
  return value;
}

void JsonScanner::append_escape(std::string& out) {
  ++at_;
  const char c = at_ < text_.size() ? text_[at_] : '\0';
  constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  if (const std::size_t found = kLetters.find(c); found != kLetters.npos) {
    out += kMeanings[found];
    ++at_;
    return;
  }
  if (c != 'u') fail("an escape other than \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u");
  ++at_;
  unsigned code = hex4();
  if (code >= 0xdc00 && code < 0xe000)
    fail("the second half of a surrogate pair without the first");
  if (code >= 0xd800 && code < 0xdc00) {
    if (text_.substr(at_, 2) != "\\u") fail("half of a surrogate pair");
    at_ += 2;
    const unsigned low = hex4();
    if (low < 0xdc00 || low >= 0xe000) fail("half of a surrogate pair");
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  append_utf8(code, out);
}

unsigned JsonScanner::hex4() {
  unsigned code = 0;
  for (int i = 0; i < 4; ++i, ++at_) {
    const char c = at_ < text_.size() ? text_[at_] : '\0';
    code <<= 4;
    if (is_digit(c)) {
      code |= static_cast<unsigned>(c - '0');
    } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
      code |= static_cast<unsigned>((c | 0x20) - 'a' + 10);
    } else {
      fail("an escape without four hex digits");
    }
  }
  return code;
}

std::string_view JsonScanner::number() {
  peek();
  const std::size_t begin = at_;
  const auto next = [&] { return at_ < text_.size() ? text_[at_] : '\0'; };
  const auto digits = [&] {
    if (!is_digit(next())) fail("no number");
    while (is_digit(next())) ++at_;
  };
  if (next() == '-') ++at_;
  if (next() == '0') {
    ++at_;
  } else {
    digits();
  }
  if (next() == '.') {
    ++at_;
    digits();
  }
  if (next() == 'e' || next() == 'E') {
    ++at_;
    if (next() == '+' || next() == '-') ++at_;
    digits();
  }
  return text_.substr(begin, at_ - begin);
}

void JsonScanner::word(std::string_view word) {
  peek();
  if (text_.substr(at_, word.size()) != word) fail("no value");
  at_ += word.size();
}

bool JsonScanner::truth() {
  const bool value = peek() == 't';
  word(value ? "true" : "false");
  return value;
}

void JsonScanner::skip_value() { skip_value(0); }

void JsonScanner::skip_value(int depth) {
  if (depth > kMostDepth) fail("over 200 values within one another");
  std::string scratch;
  switch (peek()) {
    case '{':
      expect('{');
      if (accept('}')) return;
      do {
        string(scratch);
        expect(':');
        skip_value(depth + 1);
      } while (accept(','));
      return expect('}');
    case '[':
      expect('[');
      if (accept(']')) return;
      do {
        skip_value(depth + 1);
      } while (accept(','));
      return expect(']');
    case '"':
      string(scratch);
      return;
    case 't':
      return word("true");
    case 'f':
      return word("false");
    case 'n':
      return word("null");
    default:
      number();
  }
}

void JsonScanner::end() {
  peek();
  if (at_ != text_.size()) fail("more behind the value");
}

bool is_json_integer(std::string_view number) {
  return number.find_first_of(".eE") == std::string_view::npos;
}

}  // namespace shardwise::detail
