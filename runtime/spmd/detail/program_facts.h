#pragma once

#include <cstdint>
#include <vector>

#include "shardwise/runtime/process/process_group.h"
#include "shardwise/runtime/spmd/detail/planned.h"

namespace shardwise::detail {

/// Facts that must be equal in all processes to run an executable together: the program as traced,
/// and how it was planned. Facts that a person can distinguish come first.
std::vector<ProcessGroup::Fact> program_facts(const PlannedProgram& planned);

/// One number for the facts.
std::uint64_t hash(const std::vector<ProcessGroup::Fact>& facts);

}  // namespace shardwise::detail
