#pragma once

#include "shardwise/checkpoint/detail/write/save_plan.h"

namespace shardwise::detail {

/// The layout of the one file of a plan, which must outlive it.
inline ChunkLayout only_layout(const SavePlan& plan) {
  return ChunkLayout::of_files(plan.tensors, 1).front();
}

}  // namespace shardwise::detail
