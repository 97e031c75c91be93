#pragma once

#include "shardwise/shard/dtype.h"

namespace shardwise::reshape_detail {

/// True if it is a float of any size.
bool is_float(DType dtype);
bool is_complex(DType dtype);

/// True if a checkpoint's tensors may be cast so: floats are rounded, as are complex numbers;
/// integers become only dtypes that hold each of their values.
bool can_cast(DType from, DType to);

}  // namespace shardwise::reshape_detail
