#pragma once

#include <vector>

#include "shardwise/shard/detail/dim_cut.h"
#include "shardwise/shard/sharding.h"

namespace shardwise {

struct Sharding::Data {
  Mesh mesh;
  PartitionSpec spec;
  UnevenPolicy policy;
  std::vector<detail::DimCut> cuts;  // per dim
  detail::Digits replicas;           // over axes, and parts of axes, that no dim uses

  /// Throws invalid_argument if a tensor of this shape cannot be cut like this.
  void check(const Shape& shape) const;
};

}  // namespace shardwise
