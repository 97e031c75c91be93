#pragma once

#include <string>
#include <string_view>

namespace shardwise::detail {

/// The text as content of an XML element or of an attribute in double quotes: markup is escaped,
/// and each byte that is not UTF-8, or a character that XML does not allow, becomes U+FFFD.
std::string xml_text(std::string_view text);

}  // namespace shardwise::detail
