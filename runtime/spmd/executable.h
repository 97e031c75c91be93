#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/runtime/device.h"
#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/sharded_array.h"
#include "shardwise/shard/error.h"

namespace shardwise {

namespace detail {
struct ExecutableInternals;
}

struct PartitionOptions {
  /// Weights gathered for the loss are kept for its gradient and for later losses, whose gradients
  /// are added before they are scattered: fewer bytes on the wire, more memory. If false, each loss
  /// and each gradient gathers again, and each gradient is scattered.
  bool keep_gathered_weights = false;

  /// Notes the alternatives for each node, for explain().
  bool note_choices = false;
};

/// The name of a collective in reports.
enum class CollectiveKind {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  permute,
  slice,
  general
};

/// "all-reduce", as XLA spells them. A permute sends each device the elements of its neighbours
/// that it lacks: halos and shifts.
std::string_view name(CollectiveKind kind);

/// On: each step checks its results for NaN, and throws invalid_argument with the place of
/// one. Operations are not fused, so that the error names the right one.
enum class NanCheck { off, on };

/// Moves contain the place of each byte, or not. A program without that is planned, not run: on
/// thousands of devices in much less time and memory.
enum class MovePlans { made, left_out };

/// How to count attention in a scope called kFusedAttention.
enum class Attention {
  written,  ///< as its operations one after another, as a run does them
  fused,    ///< as one kernel: no memory for its scores. For a plan that does not run
};

struct CompileOptions {
  PartitionOptions partition = {};
  NanCheck nan_check = NanCheck::off;
  MovePlans moves = MovePlans::made;
  Attention attention = Attention::written;

  /// By Graph::inputs: true if nothing else holds the array, so that an output may take its memory.
  std::vector<bool> may_donate = {};

  /// By Graph::inputs: the cut of the array that will be bound. An array without an entry is cut as
  /// the propagation determines.
  std::vector<std::optional<PartitionSpec>> input_specs = {};
};

/// Collectives of one kind in one run.
struct CollectiveTotal {
  CollectiveKind kind;
  std::int64_t count = 0;  ///< buckets count once
  std::int64_t tensors = 0;
  std::size_t bytes = 0;       ///< results on one device
  std::size_t wire_bytes = 0;  ///< that one device sends in a ring
};

/// The content of one device's memory when a program is at its fullest, by kind: planned before it
/// runs.
struct PlannedMemory {
  std::size_t peak_bytes = 0;
  std::array<std::size_t, kMemoryKinds> by_kind{};
};

/// The tensors in memory when a program is at its fullest.
struct FullestStep {
  struct Held {
    std::string label;  ///< "w1", "dot_general %10 in \"layer0\""
    MemoryKind kind;
    bool is_backward;  ///< of a gradient, or computed again for one
    TensorType type;
    std::string cut;    ///< "data,-"
    std::size_t bytes;  ///< of the largest shard

    /// "parameter"; "gradient" for a gradient's activation
    std::string_view kind_name() const;
  };
  std::string name;        ///< of the step: "dot_general %10 in \"layer0\""; "" without steps
  std::string scope;       ///< "layer0"
  std::vector<Held> held;  ///< the largest first
};

/// Traffic of one kind over the same axes in one scope.
struct Traffic {
  CollectiveKind kind;
  std::vector<std::string> axes;
  std::string scope;

  /// True if parts of a sum are combined, or a marked tensor moves. Otherwise nobody asked for the
  /// move: two tensors of an operation were cut differently.
  bool is_asked_for;

  std::int64_t tensors = 0;
  std::size_t bytes = 0, wire_bytes = 0;  ///< as CollectiveTotal
  std::string largest;                    ///< of the tensors, by bytes on the wire

  /// The node that needs that tensor and, if its tensors asked for different cuts, the one that was
  /// kept.
  std::string needed_by;
};

/// A graph made ready to run on a mesh, as often as wanted: cut, scheduled and with a place in
/// memory for every value. Immutable, thread-compatible.
class Executable {
 public:
  /// Propagates, partitions, fuses and plans; nothing runs and no memory is taken. Errors of
  /// propagate() and of the ops pass through.
  Executable(std::shared_ptr<const Graph> graph, const Mesh& mesh, const CompileOptions& options);

  ~Executable();
  Executable(const Executable&) = delete;
  Executable& operator=(const Executable&) = delete;
  void peak() const = delete;         // memory(position).peak_bytes
  void peak_bytes() const = delete;   // memory(position).peak_bytes
  void peak_memory() const = delete;  // memory(position).peak_bytes
  void report() const = delete;       // report(executable, machine)

  const Graph& graph() const;
  const Mesh& mesh() const;

  /// The needed form of the i-th input.
  ArraySpec input_spec(std::size_t i) const;

  /// The form of the i-th output.
  ArraySpec output_spec(std::size_t i) const;

  /// The weight or optimizer state that the i-th output replaces, by Graph::outputs: of the same
  /// shape and cut, and not needed any more; -1: none. Its memory is taken if
  /// CompileOptions::may_donate allows it.
  std::span<const std::int64_t> replaced() const;

  /// Runs on the devices of `inputs` (by Graph::inputs, cut as in input_spec()), and returns the
  /// outputs. Arrays in `inputs` that are donated and that nothing else holds are used up. Throws
  /// resource_exhausted before anything runs if a device has too little memory, as check_memory()
  /// does, and invalid_argument if its moves are left out; errors of steps pass through.
  std::vector<ShardedArray> run(Devices& devices, std::vector<ShardedArray> inputs) const;

  /// The same with arrays that stay the caller's if it throws: those that nothing has begun to
  /// overwrite are still there. Arrays that were used up are empty afterwards. Requires an array in
  /// each.
  std::vector<ShardedArray> run(Devices& devices,
                                std::span<std::optional<ShardedArray>> inputs) const;

  /// Throws resource_exhausted if a device of this process has no room for a run. The message has
  /// the free and the needed bytes, the step where memory is fullest, bytes and the largest tensor
  /// by kind there, and marks with which it would fit, if there are any (from suggest()). `is_here`
  /// by Graph::inputs: true if the array is on the devices already; the others still need memory.
  /// Inputs named by CompileOptions::may_donate count as donated. Takes no memory of a device.
  void check_memory(const Devices& devices, const std::vector<bool>& is_here) const;

  /// At the mesh position, with inputs and outputs. Position 0 needs the most.
  PlannedMemory memory(std::int64_t position) const;

  /// Each kind that occurs, without slices of no bytes. Those of a scan count each time; of a cond,
  /// those of the branch that sends more.
  std::vector<CollectiveTotal> collectives() const;

  /// The cut of a node and the marks that it comes from, the moves of its operands and its result,
  /// with bytes, and the alternatives. For people.
  std::string explain(NodeId node) const;

  /// The same for an input, by its label. Throws no_such_name, suggesting the nearest labels.
  std::string explain(std::string_view label) const;

 private:
  class OneRun;
  friend struct detail::ExecutableInternals;

  struct Impl;  // the passes' results
  std::unique_ptr<const Impl> impl_;
};

/// Executable::collectives() by axes and scope: unrequested moves first, then by bytes on the wire.
std::vector<Traffic> traffic(const Executable& executable);

/// The step where a device holds the most.
FullestStep fullest_step(const Executable& executable);

/// Marks with which no device needs more than `capacity_bytes`, or the lowest peak found: "it fits
/// with "w1" cut as fsdp,-: peak 1.50 MiB (1572864 bytes)". Plans its attempts.
std::string suggest(const Executable& executable, std::size_t capacity_bytes);

/// Floating-point operations of all dot_generals, on all devices together without repetitions; of a
/// cond, of the branch that has more.
double flops(const Executable& executable);

/// All nodes with their cuts, as propagated, one per line.
std::string dump_cuts(const Executable& executable);

/// The operations on each device's parts and the moves between them, with cuts and bytes.
std::string dump_steps(const Executable& executable);

/// The plan: a line for each step with the places of its results.
std::string dump_plan(const Executable& executable);

/// Marks inputs, by Graph::inputs, and the replacement of a weight or optimizer state
/// (`w = w - ...`) if that has no other mark than the weight had: as mark_sharding() marks it in a
/// program.
void mark_inputs(Graph& graph, std::span<const std::optional<PartitionSpec>> marks);

/// All stages: the traced program, dump_cuts(), dump_steps() and dump_plan(), each under its name.
std::string dump(const Executable& executable);

/// The capabilities of one device of a machine, for modelled times.
struct Machine {
  std::string id;                  ///< "h100-80gb"
  std::string name;                ///< "H100 SXM"
  double flops_per_second;         ///< of matrix products
  double memory_bytes_per_second;  ///< of the device's own memory
  double link_bytes_per_second;    ///< to a neighbour, one way
  double link_seconds;             ///< before the first byte of a message comes
  std::size_t memory_bytes;        ///< of one device
  std::string source;              ///< of the figures

  /// Devices that such links join, which are neighbours in a mesh's order; 0: all.
  std::int64_t node_devices = 0;
  double node_bytes_per_second = 0;  ///< of one device to another node, one way
};

/// Machines whose figures are published. The first two are TPU v4 and H100.
std::span<const Machine> machines();

/// The cost of one run of an executable, planned and modelled: nothing here is measured.
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

std::ostream& operator<<(std::ostream&, const Executable&) = delete;  // dump(executable)

/// A table for people.
std::string to_string(const StepReport& report);

/// The peak by FullestStep::Held::kind_name(), without kinds of no bytes. In addition there are
/// "gaps", between the places of values that do not live at the same time.
std::vector<std::pair<std::string_view, std::size_t>> bytes_by_kind(const FullestStep& fullest,
                                                                    std::size_t peak_bytes);

struct SearchedPlan;  // runtime/spmd/plans.h
struct Changes;

struct PageOptions {
  std::string program = "program";   ///< its name on the page: "step.swp"
  bool has_times = false;            ///< the modelled ones, of the report's machine
  std::size_t capacity_bytes = 0;    ///< of a device, for whether it fits; 0: not asked for
  double save_bytes_per_second = 0;  ///< of a checkpoint, for the time that it takes; 0: not told

  const SearchedPlan* search = nullptr;  ///< whose marks the program has; told first
  const Changes* changes = nullptr;      ///< of a program that does not fit; told last
};

/// The needs of a program on its mesh, as `shardwise plan` prints them: memory, traffic, products,
/// modelled times, checkpoint and input. `report` is the executable's.
std::string page(const Executable& executable, const StepReport& report,
                 const PageOptions& options);

}  // namespace shardwise
