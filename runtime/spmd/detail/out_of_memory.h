#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "shardwise/runtime/device.h"
#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/detail/lower.h"
#include "shardwise/runtime/spmd/detail/memory_plan.h"

namespace shardwise::detail {

/// "1.50 MiB (1572864 bytes)"; below 1 MiB "4096 bytes".
std::string mebibytes(std::size_t bytes);

/// The step where the regions hold most, and all tensors that have memory then.
struct Fullest {
  struct Held {
    Program::ValueId value;
    MemoryKind kind;
    std::size_t bytes;  ///< of the largest shard
  };
  std::size_t step = 0;  ///< of the program; one after the last if no step has a value there
  std::vector<Held> held;
};
Fullest fullest(const Graph& graph, const LoweredProgram& lowered, const MemoryPlan& plan);

/// The error text for a program that a device has no room for, one fact per line: the free bytes
/// and those that a run needs, the bytes in use, the step where memory is fullest, and for each
/// kind the bytes there and the largest tensor. `memory` is the device's; a run takes
/// `needed_bytes` in addition to the bytes in use.
std::string out_of_memory(const Graph& graph, const LoweredProgram& lowered, const MemoryPlan& plan,
                          DeviceId device, const MemoryStats& memory, std::size_t needed_bytes);

}  // namespace shardwise::detail
