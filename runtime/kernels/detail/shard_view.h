#pragma once

#include <cstddef>

#include "shardwise/shard/box.h"
#include "shardwise/shard/dtype.h"

namespace shardwise {

/// An operand of a kernel: one device's part of a tensor, row-major, native endian, exactly the
/// elements of `box`, which counts elements of the whole tensor. Does not own the memory.
struct ConstShardView {
  const std::byte* data;
  DType dtype;
  Box box;
};
struct ShardView {
  std::byte* data;
  DType dtype;
  Box box;
};

}  // namespace shardwise
