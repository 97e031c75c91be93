#include "shardwise/shard/text.h"

#include <charconv>
#include <cstddef>
#include <system_error>

namespace shardwise {

std::string_view trim(std::string_view text) {
  constexpr std::string_view blanks = " \t\r\n";
  const std::size_t first = text.find_first_not_of(blanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

std::optional<std::vector<std::string_view>> match_pattern(std::string_view pattern,
                                                           std::string_view name) {
  // On a mismatch only the last star has to take one more character: the characters that the stars
  // before it took suffice for any match.
  std::vector<std::string_view> parts;
  std::size_t p = 0, n = 0, star = std::string_view::npos, star_n = 0, star_part = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_n = n;
      star_part = parts.size();
      parts.push_back(name.substr(n, 0));
    } else if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == name[n])) {
      if (pattern[p] == '?') parts.push_back(name.substr(n, 1));
      ++p;
      ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      parts.resize(star_part + 1);
      parts.back() = name.substr(star_n, parts.back().size() + 1);
      n = star_n + parts.back().size();
    } else {
      return std::nullopt;
    }
  }
  for (; p < pattern.size() && pattern[p] == '*'; ++p) parts.push_back(name.substr(n, 0));
  if (p != pattern.size()) return std::nullopt;
  return parts;
}

std::optional<std::int64_t> parse_count(std::string_view text) {
  if (text.empty() || text.front() == '-') return std::nullopt;
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || stopped != end) return std::nullopt;
  return value;
}

}  // namespace shardwise
