#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardwise::detail {

/// Text from a file for a message: at most 80 characters, unprintable ones as '?'.
std::string shown_text(std::string_view text);

/// A message that contains names from a file, as one line of at most 500 characters.
std::string one_line(std::string_view message);

/// "\"a\", \"b\"": at most 20 names.
std::string shown_names(const std::vector<std::string>& names);

}  // namespace shardwise::detail
