#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace shardwise::detail {

/// Text of a file as a message may show it: at most 80 characters, the unprintable ones as '?'.
std::string shown_text(std::string_view text);

/// A message with names of a file in it: one line, of 500 characters and fewer.
std::string one_line(std::string_view message);

/// "\"a\", \"b\"": at most 20 names.
std::string shown_names(const std::vector<std::string>& names);

}  // namespace shardwise::detail
