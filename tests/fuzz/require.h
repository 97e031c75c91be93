#pragma once

#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace shardwise {

/// Ends the process with the two texts where a fuzz target's claim does not hold.
inline void require(bool holds, std::string_view what, std::string_view where) {
  if (holds) return;
  std::fprintf(stderr, "%.*s: %.*s\n", static_cast<int>(what.size()), what.data(),
               static_cast<int>(where.size()), where.data());
  std::abort();
}

}  // namespace shardwise
