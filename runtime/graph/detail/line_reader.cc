#include "shardwise/runtime/graph/detail/line_reader.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

namespace shardwise::detail {
namespace {

constexpr std::string_view kBlanks = " \t\r";

// Limits the found text in a message, so that a line of megabytes stays readable.
constexpr std::size_t kMostFound = 60;

bool is_control(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

void append_escaped(std::string& text, char c) {
  if (c == '"' || c == '\\') {
    text += '\\';
    text += c;
  } else if (is_control(c)) {
    text += fmt::format("\\x{:02x}", static_cast<unsigned>(c));
  } else {
    text += c;
  }
}

}  // namespace

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) append_escaped(result, c);
  return result + '"';
}

std::string escaped(std::string_view text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool at_end = i == 0 || i + 1 == text.size();
    if (text[i] == ' ' && at_end) {
      result += "\\x20";
    } else {
      append_escaped(result, text[i]);
    }
  }
  return result;
}

std::string unescaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    if (text[0] != '\\') {
      result += text[0];
      text.remove_prefix(1);
      continue;
    }
    if (text.size() > 1 && (text[1] == '"' || text[1] == '\\')) {
      result += text[1];
      text.remove_prefix(2);
      continue;
    }
    unsigned code = 0;
    const char* const digits = text.data() + 2;
    const bool has_digits = text.size() >= 4 && text[1] == 'x';
    if (!has_digits || std::from_chars(digits, digits + 2, code, 16).ptr != digits + 2) {
      LineReader(text).fail("\\\", \\\\ or \\x and two hexadecimal digits");
    }
    result += static_cast<char>(code);
    text.remove_prefix(4);
  }
  return result;
}

std::string_view LineReader::rest() {
  const std::size_t first = rest_.find_first_not_of(kBlanks);
  rest_.remove_prefix(first == std::string_view::npos ? rest_.size() : first);
  return rest_;
}

bool LineReader::take(std::string_view text) {
  if (!rest().starts_with(text)) return false;
  rest_.remove_prefix(text.size());
  return true;
}

void LineReader::need(std::string_view text) {
  if (!take(text)) fail(quoted(text));
}

std::string_view LineReader::word() {
  const std::string_view found = rest().substr(0, rest_.find_first_of(kBlanks));
  rest_.remove_prefix(found.size());
  return found;
}

std::string_view LineReader::before(std::string_view characters) {
  const std::string_view found = rest().substr(0, rest_.find_first_of(characters));
  rest_.remove_prefix(found.size());
  return found;
}

std::string LineReader::quoted_text() {
  if (!rest().starts_with('"')) fail("text in quotes");
  std::size_t end = 1;
  while (end < rest_.size() && rest_[end] != '"') end += rest_[end] == '\\' ? 2 : 1;
  if (end >= rest_.size()) fail("text in quotes");
  const std::string_view inside = rest_.substr(1, end - 1);
  rest_.remove_prefix(end + 1);
  return unescaped(inside);
}

std::int64_t LineReader::number(std::string_view needed) {
  std::int64_t value = 0;
  const char* const begin = rest().data();
  const auto [stopped, error] = std::from_chars(begin, begin + rest_.size(), value);
  if (error != std::errc{}) fail(needed);
  rest_.remove_prefix(static_cast<std::size_t>(stopped - begin));
  return value;
}

std::int64_t LineReader::count(std::string_view needed) {
  if (rest().starts_with('-')) fail(needed);
  return number(needed);
}

Dims LineReader::list() {
  Dims dims;
  if (take("]")) return dims;
  while (true) {
    if (dims.size() == kMaxRank) fail(fmt::format("at most {} numbers in a list", kMaxRank));
    dims.push_back(number());
    if (take("]")) return dims;
    if (!take(",")) fail("\",\" or \"]\"");
  }
}

void LineReader::fail(std::string_view needed) {
  const std::string_view found = rest();
  const std::string shown =
      found.empty() ? "the end of the line"
                    : quoted(found.substr(0, kMostFound)) + (found.size() > kMostFound ? ".." : "");
  throw Error(ErrorCode::invalid_argument, fmt::format("found {}, needed {}", shown, needed));
}

}  // namespace shardwise::detail
