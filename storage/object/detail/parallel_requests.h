#pragma once

#include <cstddef>
#include <functional>

#include "shardwise/shard/error.h"

namespace shardwise::detail {

/// Calls `request(0)` to `request(count - 1)`, up to `threads` of them at a time: each may wait
/// for an answer. After a call that throws no other begins; throws the first exception.
void request_all(std::size_t count, int threads, const std::function<void(std::size_t)>& request);

}  // namespace shardwise::detail
