#pragma once

#include <cstddef>
#include <string_view>

#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// Reads a number as it stands in a text, such as "-12" or "3.5e-2" (with neither blanks nor a
/// "+"), into one element at `out`. False where it is none of that type: out of its range, a
/// fraction for an integer, other characters. Floats are rounded to nearest; "nan" and "inf" are
/// floats; bool takes 0, 1, true and false. Requires is_computed(dtype).
bool read_number(std::string_view text, DType dtype, std::byte* out);

}  // namespace shardwise::detail
