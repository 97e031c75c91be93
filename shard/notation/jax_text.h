#pragma once

#include <string>
#include <string_view>

#include "shardwise/shard/partition_spec.h"

namespace shardwise {

/// "P('data', None, ('a', 'b'))", as JAX prints a spec. Sub-axes, which JAX has no words for, are
/// written as names: 'x:(2)4'.
std::string to_jax_text(const PartitionSpec& spec);

/// Reads JAX's form, also as "PartitionSpec(..)" and as PyTorch/XLA's bare tuple
/// "(0, None, ('a', 1))": None and () leave a dim whole, numbers are axis numbers. Throws
/// invalid_argument, unsupported for UNCONSTRAINED and for unreduced or reduced axes, which place
/// nothing.
PartitionSpec parse_jax_text(std::string_view text);

}  // namespace shardwise
