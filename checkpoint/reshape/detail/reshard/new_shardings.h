#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/box_reader.h"
#include "shardwise/reshape/reshard.h"

namespace shardwise::reshape_detail {

/// Each tensor's sharding over a new mesh: by its rule; by the spec and policy it was saved with
/// if no rule matches; whole if neither is there. Throws one invalid_argument that begins
/// with `operation` and stays short, however many tensors do not fit: rules that match nothing
/// first, then tensors with the same fault as one, the most frequent faults first.
std::vector<Sharding> new_shardings(std::span<const TensorInfo> tensors, const Mesh& mesh,
                                    const SpecRules& rules, std::string_view operation);

}  // namespace shardwise::reshape_detail
