#pragma once

#include <cstddef>
#include <cstdint>

#include "shardwise/shard/box_copy.h"

namespace shardwise::detail {

/// Copies a box of one field of a record: `row` holds the field row-major, of shape `shape`, but
/// with extent `length` in dim 0; past that, zeros are written. Requires length <= shape[0], or a
/// scalar.
void copy_row(const std::byte* row, const Shape& shape, std::int64_t length,
              std::size_t element_bytes, const BoxView& to);

}  // namespace shardwise::detail
