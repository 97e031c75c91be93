#include "shardwise/shard/detail/scanner.h"

#include <fmt/format.h>

#include "shardwise/shard/error.h"
#include "shardwise/shard/text.h"

namespace shardwise::detail {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.';
}

}  // namespace

void Scanner::skip_blanks() {
  while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n')) {
    ++at_;
  }
}

bool Scanner::peek(std::string_view token) {
  skip_blanks();
  if (!text_.substr(at_).starts_with(token)) return false;
  const std::size_t after = at_ + token.size();
  return !is_word(token.back()) || after == text_.size() || !is_word(text_[after]);
}

bool Scanner::accept(std::string_view token) {
  if (!peek(token)) return false;
  at_ += token.size();
  return true;
}

void Scanner::expect(std::string_view token) {
  if (!accept(token)) fail(fmt::format("'{}'", token));
}

bool Scanner::at_end() {
  skip_blanks();
  return at_ == text_.size();
}

void Scanner::expect_end() {
  if (!at_end()) fail("the end");
}

bool Scanner::peek_number() {
  skip_blanks();
  return at_ < text_.size() && is_digit(text_[at_]);
}

std::int64_t Scanner::number() {
  skip_blanks();
  std::size_t end = at_;
  while (end < text_.size() && is_digit(text_[end])) ++end;
  const auto value = parse_count(text_.substr(at_, end - at_));
  if (!value) fail("a number from 0 to 2^63 - 1");
  at_ = end;
  return *value;
}

std::string_view Scanner::word() {
  skip_blanks();
  std::size_t end = at_;
  while (end < text_.size() && is_word(text_[end])) ++end;
  if (end == at_) fail("a word");
  const std::string_view word = text_.substr(at_, end - at_);
  at_ = end;
  return word;
}

bool Scanner::peek_quote() {
  skip_blanks();
  return at_ < text_.size() && (text_[at_] == '\'' || text_[at_] == '"');
}

std::string_view Scanner::quoted() {
  if (!peek_quote()) fail("a name in quotes");
  const std::size_t end = text_.find(text_[at_], at_ + 1);
  if (end == std::string_view::npos) fail("a closing quote");
  const std::string_view name = text_.substr(at_ + 1, end - at_ - 1);
  at_ = end + 1;
  return name;
}

std::vector<std::int64_t> Scanner::numbers(std::string_view close) {
  std::vector<std::int64_t> list;
  if (accept(close)) return list;
  do {
    list.push_back(number());
  } while (accept(","));
  expect(close);
  return list;
}

void Scanner::fail(const std::string& needed) {
  skip_blanks();
  constexpr std::size_t kShown = 12;
  std::string found = "the end";
  if (at_ < text_.size()) {
    found = fmt::format("\"{}\"", text_.substr(at_, kShown));
    if (text_.size() - at_ > kShown) found += "..";
  }
  constexpr std::size_t kMostText = 200;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} \"{}{}\": found {} at character {}; needed is {}", what_,
                          text_.substr(0, kMostText), text_.size() > kMostText ? ".." : "", found,
                          at_, needed));
}

}  // namespace shardwise::detail
