#pragma once

#include <cstdint>
#include <unordered_map>

#include "shardwise/runtime/graph/attributes.h"
#include "shardwise/runtime/graph/detail/line_reader.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

using LiteralsByHash = std::unordered_map<std::uint64_t, LiteralAttributes>;

/// Reads what to_string() writes of attributes, into a struct of the kind that the op takes.
/// `dtype` is of the node: its numbers are of it. Throws invalid_argument with what was found and
/// what was needed.
void read_attributes(LineReader& line, DType dtype, const LiteralsByHash& literals,
                     Attributes& attributes);

}  // namespace shardwise::detail
