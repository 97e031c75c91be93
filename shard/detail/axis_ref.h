#pragma once

#include <cstdint>
#include <string_view>

namespace shardwise::detail {

/// An axis as a spec names it: all of it, or a part. A part is `axis:(pre)size` in Shardy's
/// notation: the middle factor of the axis seen as pre x size x rest, major first.
struct AxisRef {
  std::string_view axis;
  std::int64_t pre = 1;
  std::int64_t size = 0;  // 0: all of the axis
};

/// Reads "data" or "data:(2)4". Throws invalid_argument, naming the problem and `context`. Valid as
/// long as the text.
AxisRef parse_axis_ref(std::string_view text, std::string_view context);

}  // namespace shardwise::detail
