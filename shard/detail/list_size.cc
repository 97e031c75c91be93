#include "shardwise/shard/detail/list_size.h"

#include <fmt/format.h>

#include "shardwise/shard/error.h"
#include "shardwise/shard/mesh.h"

namespace shardwise::detail {

std::size_t list_size(std::int64_t positions, std::string_view what) {
  if (positions <= kMostListedPositions) return static_cast<std::size_t>(positions);
  throw Error(ErrorCode::unsupported, fmt::format("list {}: there are {}; needed are at most {}",
                                                  what, positions, kMostListedPositions));
}

}  // namespace shardwise::detail
