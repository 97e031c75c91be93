#pragma once

#include "shardwise/shard/sharding.h"

namespace shardwise {

/// From the text forms: make_sharding("data,model", "data=4,model=2").
inline Sharding make_sharding(const char* spec, const char* mesh, const char* policy = "ceil") {
  return Sharding(Mesh::parse(mesh), PartitionSpec::parse(spec), UnevenPolicy::parse(policy));
}

}  // namespace shardwise
