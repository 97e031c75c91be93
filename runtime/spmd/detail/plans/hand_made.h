#pragma once

#include <string>
#include <vector>

#include "shardwise/runtime/spmd/detail/plans/trials.h"

namespace shardwise::detail {

/// A plan as people typically write it.
struct HandMade {
  std::string name;  ///< "fsdp"
  Choice choice;
};

/// Data: the batch cut over all axes. FSDP: weights and state too, by their longest dim. Tensor,
/// for each axis: weights cut over it, by columns and then by rows (Megatron), and the batch over
/// the others; experts: weights of three dims by their first. 2-d: tensor with weights and state
/// cut over the other axes, too. The plan of the program's own marks follows the first input of
/// each group.
std::vector<HandMade> hand_made(Trials& trials);

}  // namespace shardwise::detail
