#pragma once

#include <string>
#include <string_view>

namespace shardwise {

/// True if it is UTF-8 as RFC 3629 says: shortest forms, no surrogates, nothing over U+10FFFF.
bool is_utf8(std::string_view text);

/// Appends the text as a JSON string: quoted, with quotes, backslashes and characters below U+0020
/// escaped. Requires UTF-8.
void append_json(std::string& json, std::string_view text);

/// Quotes and escapes a text from outside for a message, cut off after 100 bytes.
std::string shown(std::string_view text);

}  // namespace shardwise
