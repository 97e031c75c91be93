#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "shardwise/runtime/program/detail/program.h"
#include "shardwise/runtime/spmd/detail/planned.h"

namespace shardwise::detail {

/// Memory in use at a step.
struct CurvePoint {
  std::size_t step = 0;
  std::vector<std::size_t> bytes;         ///< by MemoryCurve::kinds
  std::vector<Program::ValueId> largest;  ///< of the tensors that come and go
};

/// The memory of the device that needs most, over the steps of a program: the largest shard of each
/// tensor that has memory then. Plain data.
struct MemoryCurve {
  std::vector<std::string_view> kinds = {};   ///< as bytes_by_kind() names them, without gaps
  std::size_t steps = 0;                      ///< of the program
  std::vector<CurvePoint> points = {};        ///< in their order; one for a program without steps
  std::size_t fullest = 0;                    ///< the point of FullestStep
  std::vector<Program::ValueId> always = {};  ///< the largest tensors that are there all the time
};

/// For a program with more than `most_points` steps, keeps the lowest and the highest point of that
/// many stretches, so that the peak is exact.
MemoryCurve memory_curve(const PlannedProgram& planned, std::size_t most_points);

/// The kind of the value, and its bytes, as in FullestStep::Held.
std::string_view kind_name(const PlannedProgram& planned, Program::ValueId value);

}  // namespace shardwise::detail
