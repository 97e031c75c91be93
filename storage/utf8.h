#pragma once

#include <string>
#include <string_view>

namespace shardwise {

/// Whether it is UTF-8 as RFC 3629 says: shortest forms, no surrogates, nothing over U+10FFFF.
bool is_utf8(std::string_view text);

/// Requires a code point up to U+10FFFF that is no surrogate.
void append_utf8(unsigned code_point, std::string& out);

}  // namespace shardwise
