#pragma once

#include <string_view>

namespace shardwise {

/// Whether it is UTF-8 as RFC 3629 says: shortest forms, no surrogates, nothing over U+10FFFF.
bool is_utf8(std::string_view text);

}  // namespace shardwise
