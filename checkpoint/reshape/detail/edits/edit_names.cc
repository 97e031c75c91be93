#include "shardwise/reshape/detail/edits/edit_names.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "shardwise/shard/dims.h"
#include "shardwise/shard/text.h"

namespace shardwise::reshape_detail {

bool is_wild(std::string_view pattern) {
  return pattern.find_first_of("*?") != std::string_view::npos;
}

std::string edited_name(std::string_view pattern, std::string_view name,
                        std::span<const std::string_view> parts) {
  std::vector<std::string_view> stars, marks;  // those left, in order
  std::size_t part = 0;
  for (const char c : pattern) {
    if (c == '*') stars.push_back(parts[part++]);
    if (c == '?') marks.push_back(parts[part++]);
  }
  std::string made;
  std::size_t star = 0, mark = 0;
  for (const char c : name) {
    if (c == '*') {
      made += stars[star++];
    } else if (c == '?') {
      made += marks[mark++];
    } else {
      made += c;
    }
  }
  return made;
}

bool is_numbered(std::string_view text) { return text.find('#') != std::string_view::npos; }

std::string numbered_name(std::string text, std::size_t number) {
  return text.replace(text.find('#'), 1, std::to_string(number));
}

std::optional<EditMatch> match_edited(std::string_view pattern, std::string_view name) {
  const std::size_t at = pattern.find('#');
  std::string starred(pattern);
  if (at != std::string::npos) starred[at] = '*';
  auto parts = match_pattern(starred, name);
  if (!parts || at == std::string::npos) {
    return parts ? std::optional(EditMatch{*std::move(parts)}) : std::nullopt;
  }
  const auto place =
      std::ranges::count_if(pattern.substr(0, at), [](char c) { return c == '*' || c == '?'; });
  const std::string_view digits = (*parts)[as_size(place)];
  const std::optional<std::int64_t> number = parse_count(digits);
  if (!number || std::to_string(*number) != digits) return std::nullopt;
  parts->erase(parts->begin() + place);
  return EditMatch{*std::move(parts), as_size(*number)};
}

}  // namespace shardwise::reshape_detail
