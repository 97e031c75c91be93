#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>

#include "shardwise/runtime/graph/attributes.h"
#include "shardwise/runtime/graph/detail/line_reader.h"
#include "shardwise/shard/dtype.h"

namespace shardwise::detail {

using LiteralsByHash = std::unordered_map<std::uint64_t, LiteralAttributes>;

/// Reads what to_string() writes of attributes, into a struct of the kind that the op takes.
/// `dtype` is of the node: its numbers are of it. Throws invalid_argument with what was found and
/// what was needed. `bodies` are those after the line.
void read_attributes(LineReader& line, DType dtype, const LiteralsByHash& literals,
                     std::span<const std::shared_ptr<const Graph>> bodies, Attributes& attributes);

}  // namespace shardwise::detail
