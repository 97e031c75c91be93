#pragma once

#include <cstdint>
#include <vector>

#include "shardwise/shard/box.h"

namespace shardwise::detail {

/// What fills one target.
struct TargetCopies {
  std::vector<std::uint32_t> sources;  ///< ascending

  /// What each of them gives; empty where each gives all that it shares with the target.
  std::vector<Box> boxes;
};

}  // namespace shardwise::detail
