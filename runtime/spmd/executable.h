#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/device.h"
#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/sharded_array.h"
#include "shardwise/shard/error.h"

namespace shardwise {

class Program;
struct PartitionedGraph;
struct Propagation;

struct PartitionOptions {
  /// Weights that were gathered for the loss are kept for its gradient: fewer bytes on the wire,
  /// more memory. Without, each is gathered anew.
  bool keep_gathered_weights = false;

  /// Notes what was thought of for each node, for explain().
  bool note_choices = false;
};

/// What a collective is called; for reports.
enum class CollectiveKind {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  permute,
  slice,
  general
};

/// "all-reduce", as XLA spells them. A permute sends each device what it lacks of its neighbours'
/// elements: halos and shifts.
std::string_view name(CollectiveKind kind);

/// On: each step looks for NaN in what it has made, and throws invalid_argument with the element
/// where it finds one. No two operations are put together, so that the one that made it is named.
enum class NanCheck { off, on };

struct CompileOptions {
  PartitionOptions partition = {};
  NanCheck nan_check = NanCheck::off;

  /// By Graph::inputs: nothing else holds the array, so that an output may take its memory.
  std::vector<bool> may_donate = {};

  /// By Graph::inputs: how the arrays are cut that will be bound. An array without an entry is cut
  /// as the propagation says.
  std::vector<std::optional<PartitionSpec>> input_specs = {};
};

/// Collectives of one kind that one run carries out.
struct CollectiveTotal {
  CollectiveKind kind;
  std::int64_t count = 0;  ///< buckets count once
  std::int64_t tensors = 0;
  std::size_t bytes = 0;       ///< results on one device
  std::size_t wire_bytes = 0;  ///< that one device sends in a ring
};

/// What one device's memory holds at the fullest of a program, by kind: planned before it runs.
struct PlannedMemory {
  std::size_t peak_bytes = 0;
  std::array<std::size_t, kMemoryKinds> by_kind{};
};

/// A graph made ready to run on a mesh, as often as wanted: cut, scheduled and with a place in
/// memory for every value. Immutable, thread-compatible.
class Executable {
 public:
  /// Propagates, partitions, fuses and plans; nothing runs and no memory is taken. Throws what
  /// propagate() and the ops throw.
  Executable(std::shared_ptr<const Graph> graph, const Mesh& mesh, const CompileOptions& options);

  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;

  const Graph& graph() const;
  const Mesh& mesh() const;

  // What the passes made; of types that are not part of the interface. dump_cuts() and the others
  // below show it.
  const Propagation& propagation() const;
  const PartitionedGraph& partitioned() const;
  const Program& program() const;

  /// How the i-th input is to be bound.
  ArraySpec input_spec(std::size_t i) const;

  /// The weight or optimizer state that the i-th output takes the place of, by Graph::outputs: of
  /// the same shape and cut, and needed no more; -1: none. Its memory is taken if
  /// CompileOptions::may_donate says so.
  std::span<const std::int64_t> replaced() const;

  /// Runs on devices that `inputs` (by Graph::inputs, cut as input_spec() says) are on, and gives
  /// the outputs. Arrays in `inputs` that are donated and that nothing else holds are used up.
  /// Throws resource_exhausted before anything runs if a device has too little memory, as
  /// check_memory() does, and what steps throw.
  std::vector<ShardedArray> run(Devices& devices, std::vector<ShardedArray> inputs) const;

  /// The same with arrays that stay the caller's if it throws: all that nothing has begun to write
  /// over are there then. Arrays that have been used up are empty afterwards. Requires an array in
  /// each.
  std::vector<ShardedArray> run(Devices& devices,
                                std::span<std::optional<ShardedArray>> inputs) const;

  /// Throws resource_exhausted if a device of this process has no room for a run: with what is free
  /// and needed, the step at which memory is fullest, bytes and the largest tensor by kind there,
  /// and marks with which it would fit, if there are any (what suggest() says). `is_here` by
  /// Graph::inputs: the array is on the devices already; the others still need memory. What
  /// CompileOptions::may_donate names counts as donated. Takes no memory of a device.
  void check_memory(const Devices& devices, const std::vector<bool>& is_here) const;

  /// At the mesh position, with inputs and outputs.
  PlannedMemory memory(std::int64_t position) const;

  /// Each kind that occurs, slices without bytes left out.
  std::vector<CollectiveTotal> collectives() const;

  /// Floating-point operations of all dot_generals, on all devices together if none were repeated.
  double flops() const;

  /// How a node is cut and from which marks that comes, what moves its operands and its result,
  /// with bytes, and the choices that there were. For people.
  std::string explain(NodeId node) const;

  /// The same of an input, by its label. Throws no_such_name, suggesting the nearest labels.
  std::string explain(std::string_view label) const;

  /// All nodes with their cuts, as propagated, one a line.
  std::string dump_cuts() const;

  /// The operations on each device's parts and the moves between them, with cuts and bytes.
  std::string dump_steps() const;

  /// The plan: a line for each step with the places of its results.
  std::string dump_plan() const;

 private:
  class OneRun;
  struct Impl;  // the passes' results
  std::unique_ptr<const Impl> impl_;
};

/// All stages: what was traced, dump_cuts(), dump_steps() and dump_plan(), each under its name.
std::string dump(const Executable& executable);

}  // namespace shardwise
