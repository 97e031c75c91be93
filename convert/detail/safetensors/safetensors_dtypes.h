#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// The dtype with this name in safetensors. Absent if safetensors or this library lacks it.
std::optional<DType> parse_safetensors_dtype(std::string_view text);

/// Bits per element of a dtype that is packed into bytes and read as u8: F4, F6_E2M3 or F6_E3M2. 0
/// for any other.
int packed_safetensors_bits(std::string_view text);

/// The name of a dtype in safetensors, and its rank: tensors of the greatest rank come first in a
/// file.
struct SafetensorsDType {
  std::string_view name;
  std::size_t rank;
};

/// Absent if safetensors lacks the dtype.
std::optional<SafetensorsDType> safetensors_dtype(DType dtype);

}  // namespace shardwise::detail
