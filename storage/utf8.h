#pragma once

#include <string>
#include <string_view>

namespace shardwise {

/// Whether it is UTF-8 as RFC 3629 says: shortest forms, no surrogates, nothing over U+10FFFF.
bool is_utf8(std::string_view text);

/// Appends the text as a JSON string: in quotes, with escapes for these, backslashes and what is
/// below a blank. Requires UTF-8.
void append_json(std::string& json, std::string_view text);

/// In quotes, with escapes, cut off after 100 bytes: for messages about text from outside.
std::string shown(std::string_view text);

}  // namespace shardwise
