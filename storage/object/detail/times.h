#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace shardwise::detail {

/// Seconds since 1970 of "2009-10-12T17:50:30Z", with or without a fraction and an offset like
/// "+02:00". Absent for all else.
std::optional<std::int64_t> parse_iso_time(std::string_view text);

/// Seconds since 1970 of "Mon, 12 Oct 2009 17:50:30 GMT", a date in an HTTP header. Absent for all
/// else.
std::optional<std::int64_t> parse_http_time(std::string_view text);

}  // namespace shardwise::detail
