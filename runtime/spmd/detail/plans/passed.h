#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/detail/fuse.h"
#include "shardwise/runtime/spmd/detail/lower.h"
#include "shardwise/runtime/spmd/detail/partition.h"
#include "shardwise/runtime/spmd/detail/planned.h"
#include "shardwise/runtime/spmd/detail/propagate.h"

namespace shardwise {

/// Bytes received in moves that are not sums, as from most_received(): computed once for each pair
/// of placements. Thread-compatible.
class ReceivedBytes {
 public:
  std::size_t of(const Program::Value& from, const Program::Value& to);

 private:
  struct Known {
    Layout from, to;
    Shape shape;
    DType dtype;
    std::size_t bytes;
  };
  std::vector<Known> known_;
};

/// A program, or the body of a scan, after the passes. Valid as long as its source.
struct Passed {
  const Graph& graph;
  const Propagation& propagation;
  const PartitionedGraph& partitioned;
  const std::vector<FusedStep>& steps;
  const Program& program;
  const std::map<std::size_t, LoweredBodies>& bodies;
  std::int64_t times;  ///< number of runs
  std::string scope;   ///< of the scan
  std::shared_ptr<ReceivedBytes> received;
};

Passed passed(const PlannedProgram& planned);

/// Bytes that one run of a body sends; each is computed once.
using WireBytes = std::map<const PartitionedGraph*, std::size_t>;

/// The loop that a step runs; for a cond the branch that sends more. Absent if it is not a loop.
/// Throws unsupported for more trips than can be counted.
std::optional<Passed> body_of_step(const Passed& in, std::size_t step, WireBytes& known);

/// One move of a run, and how often it happens.
struct CountedMove {
  const Passed& in;
  const PartitionedGraph::Move& move;
  CollectiveKind kind;
  std::size_t wire_bytes;
  bool is_first;  ///< of its bucket

  /// The tensor that moves.
  NodeId tensor() const;

  /// As Traffic has it.
  bool is_asked_for() const;
  const std::string& scope() const;
  std::vector<std::string> axes(const Mesh& mesh) const;
};
using CountMove = std::function<void(const CountedMove&)>;

/// Calls count for each move of a step that is not a loop, leaving out slices without bytes.
void for_each_move_of_step(const Passed& in, std::size_t step, const CountMove& count);

/// The same for each move of a run and of the bodies in it.
void for_each_move(const Passed& in, const CountMove& count);

}  // namespace shardwise
