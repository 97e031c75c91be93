#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "shardwise/runtime/device.h"
#include "shardwise/runtime/program/detail/program.h"
#include "shardwise/runtime/program/detail/schedule.h"
#include "shardwise/runtime/program/detail/storage.h"

namespace shardwise {

/// The body of a Program::Loop. Its inputs are the unchanging values, then `carries` carried
/// values, then one slice of each of `xs` stacked values of the program around it. Its outputs are
/// the carried values for the next time, then slices of stacked ones. Dim 0 of a stacked value is
/// whole on each device: its slices are one after another there. Immutable.
struct LoopBody {
  using ValueId = Program::ValueId;

  Program program;
  Schedule schedule;
  std::int64_t trips = 0;
  bool reverse = false;  ///< from the last slices to the first
  std::size_t carries = 0, xs = 0;
  std::vector<ValueId> inputs, outputs;

  /// By output: true if the program makes it, in memory of its own; else it is an input or an
  /// earlier output, and is copied.
  std::vector<bool> is_made;

  /// The other values: at an offset of an input, or of the loop's memory.
  struct Place {
    ValueId value;
    ValueId input;  ///< -1: in the loop's memory
    std::size_t offset;
  };
  std::vector<Place> places;

  /// By carry: its offset in the loop's memory, where every other trip keeps it for the next;
  /// absent if each trip overwrites the carry.
  std::vector<std::optional<std::size_t>> spare_offsets;
};

/// Runs the loop with the values of the program around it, on the calling thread and the workers of
/// `devices`. `tag` as run()'s. Throws as run(), with the trip in the message.
void run_loop(const Program::Loop& loop, const Program& around, const Storage& storage,
              const Devices& devices, std::uint64_t tag);

}  // namespace shardwise
