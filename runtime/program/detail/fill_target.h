#pragma once

#include <cstdint>
#include <functional>

#include "shardwise/shard/box_copy.h"
#include "shardwise/shard/dtype.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise::detail {

/// The memory that a copy reads; it holds at least the copy's box.
using SourceMemory = std::function<ConstBoxView(const Copy& copy)>;

/// Executes the copies that fill one target of a plan, reducing if the plan does: the only way in
/// which the runtime moves data between devices. Different targets may be filled at the same time.
/// `to` holds at least the target's box. A source that is the target's own memory is not copied.
///
/// Requires that the copies of a reducing plan that fill one target have equal or disjoint boxes;
/// tiles of shardings have.
void fill_target(const TransferPlan& plan, std::int64_t target, DType dtype,
                 const SourceMemory& source, const BoxView& to);

}  // namespace shardwise::detail
