#pragma once

#include <string_view>

#include "shardwise/shard/partition_spec.h"

namespace shardwise::detail {

/// parse_jax_text() of notation/xla_text.h, for PartitionSpec::parse(), which reads that form too.
PartitionSpec parse_jax_spec(std::string_view text);

}  // namespace shardwise::detail
