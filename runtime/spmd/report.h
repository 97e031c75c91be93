#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "shardwise/runtime/spmd/executable.h"

namespace shardwise {

/// What one device of a machine can do, for modelled times.
struct Machine {
  std::string name;
  double flops_per_second;         ///< of matrix products
  double memory_bytes_per_second;  ///< of the device's own memory
  double link_bytes_per_second;    ///< to a neighbour, one way
  double link_seconds;             ///< before the first byte of a message comes
  std::string source;              ///< of the figures
};

/// Machines whose figures are published: TPU v4, H100.
std::span<const Machine> machines();

/// What one run of an executable costs, planned and modelled: nothing here is measured.
struct StepReport {
  double model_flops = 0;   ///< of all products, each counted once
  double device_flops = 0;  ///< on the device that has the most, with what devices repeat
  std::vector<CollectiveTotal> collectives;
  PlannedMemory memory;  ///< of the device that has the most

  Machine machine;
  double compute_seconds = 0;     ///< for each op the longer of its operations and its bytes
  double collective_seconds = 0;  ///< rings, one after another, not hidden by computing
};
StepReport report(const Executable& executable, const Machine& machine);

/// A table for people.
std::string to_string(const StepReport& report);

}  // namespace shardwise
