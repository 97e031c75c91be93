#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise {

/// Calls body(copies) for the copies of a plan, in its order, in batches of at most `max_bytes`;
/// what is larger by itself is cut into parts that are as large as may be. So a transfer goes
/// through a buffer of any size.
///
/// Throws invalid_argument where `max_bytes` is less than an element, and what `body` throws.
void for_each_batch(const TransferPlan& plan, std::size_t element_bytes, std::size_t max_bytes,
                    const std::function<void(std::span<const Copy>)>& body);

/// A box that is read once from a source and goes to one or more targets.
struct SharedRead {
  std::int64_t source;
  Box box;
  std::span<const std::int64_t> targets;  ///< ascending; valid during the call
};

/// Calls body(read) for each distinct box that the plan takes from a source, by source. Takes
/// memory for all boxes of the plan, 16 bytes per dim. Throws what `body` throws.
void for_each_read(const TransferPlan& plan, const std::function<void(const SharedRead&)>& body);

}  // namespace shardwise
