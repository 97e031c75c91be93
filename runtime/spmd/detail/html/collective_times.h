#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "shardwise/runtime/spmd/detail/planned.h"
#include "shardwise/runtime/spmd/executable.h"

namespace shardwise::detail {

/// A collective after the ones before it; a loop's moves are summed over its trips.
struct TimedMove {
  CollectiveKind kind;
  std::vector<std::string> axes;
  std::string scope;
  NodeId consumer;                ///< in the program; of a loop's, the loop
  std::string tensor;             ///< that moves
  bool is_asked_for;              ///< as Traffic has it
  std::int64_t times;             ///< how often, in loops
  std::size_t wire_bytes;         ///< that one device sends, all times together
  double begin = 0, seconds = 0;  ///< modelled
};

struct CollectiveTimes {
  std::vector<TimedMove> moves;
  double seconds = 0;          ///< of the whole run, computing and collectives
  std::vector<double> begins;  ///< by step of the program
  std::int64_t left_out = 0;   ///< moves beyond the most, those that send the least
  std::size_t left_out_bytes = 0;
};

/// All moves of a run, at modelled times: one operation after another, as StepReport counts them.
CollectiveTimes collective_times(const PlannedProgram& planned, const Machine& machine,
                                 std::size_t most_moves);

}  // namespace shardwise::detail
