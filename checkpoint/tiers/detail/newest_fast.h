#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "shardwise/runtime/process/process_group.h"
#include "shardwise/storage/file.h"
#include "shardwise/tiers/detail/assembly.h"
#include "shardwise/tiers/tiers.h"

namespace shardwise::tiers_detail {

/// Steps from `least` to `most`, both included.
struct StepRange {
  std::int64_t least = 0, most = std::numeric_limits<std::int64_t>::max();
};

/// Why newer steps were not taken.
struct PassedOver {
  std::vector<std::string> steps;
  std::vector<std::string> damaged;  ///< also of the step that was taken
  std::set<std::int64_t> numbers;    ///< of the steps; the same on all processes
  std::exception_ptr refused = {};   ///< AssembledStep::refused: no other step was looked at
};

/// The newest step of the fast tier, of those in the range, that assemble() can put together.
/// `passed_over` gets the problems of the others, also if this throws or finds none. All
/// processes call it together. Throws as assemble() does.
std::optional<TierStep> newest_fast(const ProcessGroup& group, FileSystem& file_system,
                                    const AssemblyPlaces& places, StepRange range,
                                    const NeededBoxes& needed, PassedOver& passed_over);

}  // namespace shardwise::tiers_detail
