#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Patterns of edits, and the names that they make.
namespace shardwise::reshape_detail {

/// True if it has a "*" or "?".
bool is_wild(std::string_view pattern);

/// True if it has a "#", which stands for a number.
bool is_numbered(std::string_view text);

struct EditMatch {
  std::vector<std::string_view> wildcards;
  std::size_t number = 0;  ///< that "#" stands for
};

/// As match_pattern(), for patterns that may have one "#".
std::optional<EditMatch> match_edited(std::string_view pattern, std::string_view name);

/// A name with its wildcards replaced by the matches of a pattern's.
std::string edited_name(std::string_view pattern, std::string_view name,
                        std::span<const std::string_view> parts);

/// A text with the number in place of its first "#".
std::string numbered_name(std::string text, std::size_t number);

}  // namespace shardwise::reshape_detail
