#pragma once

#include <cstdint>
#include <vector>

#include "shardwise/runtime/process/process_group.h"
#include "shardwise/runtime/spmd/detail/planned.h"

namespace shardwise::detail {

/// What all processes must have alike to run an executable together: from the program as it was
/// traced, and how it was planned. What a person can tell apart comes first.
std::vector<ProcessGroup::Fact> program_facts(const PlannedProgram& planned);

/// One number of them.
std::uint64_t hash(const std::vector<ProcessGroup::Fact>& facts);

}  // namespace shardwise::detail
