#pragma once

#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// Whether every value of the source is one of the target. Requires dtypes that are computed with.
bool is_exact(DType from, DType to);

}  // namespace shardwise::detail
