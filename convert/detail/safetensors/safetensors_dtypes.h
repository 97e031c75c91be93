#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// The dtype that safetensors calls so. Absent if it, or this library, has none.
std::optional<DType> parse_safetensors_dtype(std::string_view text);

/// Bits of an element of a dtype that is packed into bytes and is read as u8: F4, F6_E2M3 or
/// F6_E3M2. 0 for any other.
int packed_safetensors_bits(std::string_view text);

/// How safetensors calls a dtype, and where tensors of it stand in a file: those with the greatest
/// rank come first.
struct SafetensorsDType {
  std::string_view name;
  std::size_t rank;
};

/// Absent if safetensors has none.
std::optional<SafetensorsDType> safetensors_dtype(DType dtype);

}  // namespace shardwise::detail
