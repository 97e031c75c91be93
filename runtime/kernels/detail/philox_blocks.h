#pragma once

#include <cstdint>

namespace shardwise::detail {

/// The words of philox() for the counters first_counter, first_counter + 1, .., four for each, by
/// vectors.
void philox_blocks(std::uint64_t key, std::uint64_t first_counter, std::uint64_t counters,
                   std::uint32_t* out);

}  // namespace shardwise::detail
