#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/memory/buffer.h"
#include "shardwise/runtime/memory/detail/offsets.h"
#include "shardwise/runtime/program/detail/schedule.h"
#include "shardwise/runtime/spmd/detail/lower.h"

namespace shardwise {

/// The memory of every value of a lowered program while it runs. The same on each device: places
/// are for the largest shard. Plain data.
struct MemoryPlan {
  enum class Home : std::uint8_t {
    input,   ///< in the array that is bound
    output,  ///< in an array of its own, or in that of an input that it replaces
    region,  ///< at its root's offset in the device's region, or in an output's memory
  };

  // By value of the program.
  std::vector<Home> homes;
  std::vector<std::size_t> bytes;       ///< of the largest shard
  std::vector<Program::ValueId> roots;  ///< whose memory it has; else itself
  std::vector<std::size_t> offsets;  ///< of roots in the region or in their host; else in the root
  std::vector<Program::ValueId> hosts;  ///< the output that a root is in until it is made; else -1
  std::vector<Lifetime> lifetimes;      ///< of roots, for all that have their memory
  MemoryReuse reuse;                    ///< for the schedule

  /// True if it has memory in the device's region, where no other value of the same steps is.
  bool is_placed(std::size_t value) const {
    return homes[value] == Home::region && as_size(roots[value]) == value && hosts[value] < 0;
  }

  /// The offset of the value in the region, the host, or the input that is its root.
  std::size_t offset(std::size_t value) const {
    const std::size_t root = as_size(roots[value]);
    return offsets[root] + (root == value ? 0 : offsets[value]);
  }

  /// The region of each device.
  std::size_t region_bytes = 0;

  /// By Graph::outputs: true if it has memory of its own, and no output before it is the same
  /// value.
  std::vector<bool> is_made;

  /// By Graph::outputs: the weight or optimizer state that it replaces, and the one whose memory it
  /// takes; -1: none.
  std::vector<std::int64_t> replaced, donated;
};

/// For the body of a loop: output k is input `first + k` of the next trip.
struct Carries {
  std::size_t first = 0, count = 0;
};

/// Values may use an output's memory before it is made, or not. A slice of a loop's result may
/// begin at any element, so there they may not.
enum class OutputsHost : bool { no, yes };

/// `may_donate` by Graph::inputs, as in CompileOptions. A carry takes the memory of the previous
/// trip's carry if that is not needed any more. A value that stays within kernels has no memory.
MemoryPlan plan_memory(const Graph& graph, const LoweredProgram& lowered,
                       const std::vector<bool>& may_donate,
                       OutputsHost outputs_host = OutputsHost::yes, const Carries& carries = {});

/// At the mesh position, with inputs and outputs. Position 0 needs the most.
PlannedMemory planned_memory(const Graph& graph, const LoweredProgram& lowered,
                             const MemoryPlan& plan, std::int64_t position);

/// The kind of memory of the i-th output: that of the input that it replaces.
MemoryKind output_kind(const Graph& graph, const MemoryPlan& plan, std::size_t output);

/// Calls reads(value) for each value that a step reads and makes(value) for each that it makes.
template <class Reads, class Makes>
void visit_step(const Program::Step& step, const Reads& reads, const Makes& makes) {
  if (const auto* const call = std::get_if<Program::Call>(&step)) {
    for (const Program::ValueId value : call->inputs) reads(value);
    for (const Program::ValueId value : call->outputs) makes(value);
  } else if (const auto* const move = std::get_if<Program::Move>(&step)) {
    for (const Program::Move::Part& part : move->parts) reads(part.from);
    for (const Program::Move::Part& part : move->parts) makes(part.to);
  } else if (const auto* const loop = std::get_if<Program::Loop>(&step)) {
    for (const Program::ValueId value : loop->read()) reads(value);
    for (const Program::ValueId value : loop->made()) makes(value);
  } else {
    makes(std::get<Program::Fill>(step).value);
  }
}

}  // namespace shardwise
