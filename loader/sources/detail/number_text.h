#pragma once

#include <cstddef>
#include <string_view>

#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

/// Reads the text of a number, such as "-12" or "3.5e-2" (with neither blanks nor a "+"), into one
/// element at `out`. False if it is no number of that type: out of its range, a fraction for an
/// integer, other characters. Floats are rounded to nearest; "nan" and "inf" are floats; bool takes
/// 0, 1, true and false. Requires is_computed(dtype).
bool read_number(std::string_view text, DType dtype, std::byte* out);

}  // namespace shardwise::detail
