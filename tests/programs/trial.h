#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "reference_numbers.h"
#include "shardwise/runtime/spmd/detail/partition.h"
#include "shardwise/runtime/spmd/executable.h"

namespace shardwise {

/// A random program, its inputs, and how to run it.
struct Trial {
  std::uint32_t seed = 0;
  GraphBuilder graph = {};
  Mesh mesh = Mesh::line(1);
  CompileOptions options = {};
  std::vector<std::vector<std::byte>> inputs = {};
  DevicesOptions devices = {.threads = 1};
  int runs = 1;

  /// Without sums of floats: bits are the same on any mesh, those of NaN excepted.
  bool has_special_values = false;
};

Trial random_trial(std::uint32_t seed);

/// The same without marks.
Graph unmarked(Graph graph);

/// The same program for one device.
Trial on_one_device(const Trial& trial);

/// Results of a run.
struct Outcome {
  std::vector<ShardedArray> outputs;  ///< of the last run
  PartitionedGraph partitioned;
  std::size_t wire_bytes;  ///< of all collectives, by the plan
  std::size_t sent_bytes;  ///< between devices in the last run, as they counted
  std::size_t peak_bytes;  ///< planned, of the device that needs most
  std::string dump;        ///< for people
};

/// Runs the program, and checks that memory was planned to the byte.
Outcome run(const Trial& trial);

/// The first difference of an output from that of another run; "" if they are equal. The sign of a
/// zero is no integer's: where sums are made of parts, 0 + -0 is 0.
std::string different_numbers(const Outcome& found, const Outcome& expected,
                              ZeroSign zero_sign = ZeroSign::ignored);

/// Parts of a graph that are lost when its text is read; "" if none.
std::string lost_in_text(const Graph& graph);

/// Returns the problem of a trial, or "".
using Check = std::function<std::string(const Trial&)>;

/// Makes the trials of `count` seeds from `first` on and checks them. The first with which
/// something is wrong fails the test, with fewer marks and outputs where those still show it. After
/// each that passes: `passed`.
void check_trials(
    std::uint32_t first, std::uint32_t count, const Check& check,
    const std::function<void(const Trial&)>& passed = [](const Trial&) {});

}  // namespace shardwise
