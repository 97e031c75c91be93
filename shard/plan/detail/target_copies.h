#pragma once

#include <cstdint>
#include <vector>

#include "shardwise/shard/box.h"

namespace shardwise::detail {

/// The copies that fill one target.
struct TargetCopies {
  std::vector<std::uint32_t> sources;  ///< ascending

  /// The box that each source gives; empty if each gives all that it shares with the target.
  std::vector<Box> boxes;
};

}  // namespace shardwise::detail
