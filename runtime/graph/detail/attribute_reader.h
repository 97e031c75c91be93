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

/// Reads to_string() of attributes into a struct of the op's kind. `dtype` is the node's, and that
/// of its numbers. Throws invalid_argument naming the found and the needed text. `bodies` are those
/// after the line.
void read_attributes(LineReader& line, DType dtype, const LiteralsByHash& literals,
                     std::span<const std::shared_ptr<const Graph>> bodies, Attributes& attributes);

}  // namespace shardwise::detail
