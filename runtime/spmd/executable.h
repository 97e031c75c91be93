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
  /// Weights that were gathered for the loss are kept for its gradient and for later losses, whose
  /// gradients are added before they are scattered: fewer bytes on the wire, more memory. Without,
  /// each loss and each gradient gathers again, and each gradient is scattered.
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

/// Whether moves say which bytes go to which place. A program without that is planned, not run: on
/// thousands of devices in much less time and memory.
enum class MovePlans { made, left_out };

/// How attention in a scope called kFusedAttention is counted.
enum class Attention {
  written,  ///< as its operations one after another, as a run does them
  fused,    ///< as one kernel: no memory for its scores. For a plan that does not run
};

struct CompileOptions {
  PartitionOptions partition = {};
  NanCheck nan_check = NanCheck::off;
  MovePlans moves = MovePlans::made;
  Attention attention = Attention::written;

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

/// What has memory when a program is at its fullest.
struct FullestStep {
  struct Held {
    std::string label;  ///< "w1", "dot_general %10 in \"layer0\""
    MemoryKind kind;
    bool is_backward;  ///< of a gradient, or computed again for one
    TensorType type;
    std::string cut;    ///< "data,-"
    std::size_t bytes;  ///< of the largest shard

    /// "parameter"; "gradient" of a gradient's activation
    std::string_view kind_name() const;
  };
  std::string name;        ///< of the step: "dot_general %10 in \"layer0\""; "" if there is none
  std::string scope;       ///< "layer0"
  std::vector<Held> held;  ///< the largest first
};

/// What moves of one kind over the same axes in one scope send.
struct Traffic {
  CollectiveKind kind;
  std::vector<std::string> axes;
  std::string scope;

  /// Parts of a sum are combined, or a tensor moves that is marked. Else nobody has asked for it:
  /// two tensors of an operation were cut differently.
  bool is_asked_for;

  std::int64_t tensors = 0;
  std::size_t bytes = 0, wire_bytes = 0;  ///< as CollectiveTotal
  std::string largest;                    ///< of the tensors, by bytes on the wire

  /// What needs that one, and, if tensors of it asked for different cuts, which was kept.
  std::string needed_by;
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
  void peak() const = delete;         // memory(position).peak_bytes
  void peak_bytes() const = delete;   // memory(position).peak_bytes
  void peak_memory() const = delete;  // memory(position).peak_bytes
  void report() const = delete;       // report(executable, machine)

  const Graph& graph() const;
  const Mesh& mesh() const;

  /// How the i-th input is to be bound.
  ArraySpec input_spec(std::size_t i) const;

  /// How the i-th output leaves.
  ArraySpec output_spec(std::size_t i) const;

  /// The weight or optimizer state that the i-th output takes the place of, by Graph::outputs: of
  /// the same shape and cut, and needed no more; -1: none. Its memory is taken if
  /// CompileOptions::may_donate says so.
  std::span<const std::int64_t> replaced() const;

  /// Runs on devices that `inputs` (by Graph::inputs, cut as input_spec() says) are on, and gives
  /// the outputs. Arrays in `inputs` that are donated and that nothing else holds are used up.
  /// Throws resource_exhausted before anything runs if a device has too little memory, as
  /// check_memory() does, invalid_argument if its moves are left out, and what steps throw.
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

  /// At the mesh position, with inputs and outputs. Position 0 needs the most.
  PlannedMemory memory(std::int64_t position) const;

  /// Each kind that occurs, slices without bytes left out. Those of a scan count each time, and of
  /// a cond those of the branch that sends more.
  std::vector<CollectiveTotal> collectives() const;

  /// How a node is cut and from which marks that comes, what moves its operands and its result,
  /// with bytes, and the choices that there were. For people.
  std::string explain(NodeId node) const;

  /// The same of an input, by its label. Throws no_such_name, suggesting the nearest labels.
  std::string explain(std::string_view label) const;

 private:
  class OneRun;
  friend struct detail::ExecutableInternals;

  struct Impl;  // the passes' results
  std::unique_ptr<const Impl> impl_;
};

/// Executable::collectives() by axes and scope: first the moves that nobody has asked for, then by
/// bytes on the wire.
std::vector<Traffic> traffic(const Executable& executable);

/// When a device holds the most.
FullestStep fullest_step(const Executable& executable);

/// Marks with which no device needs more than `capacity_bytes`, or the least that was found: "it
/// fits with "w1" cut as fsdp,-: peak 1.50 MiB (1572864 bytes)". Plans what it tries.
std::string suggest(const Executable& executable, std::size_t capacity_bytes);

/// Floating-point operations of all dot_generals, on all devices together if none were repeated;
/// of a cond, of the branch that has more.
double flops(const Executable& executable);

/// All nodes with their cuts, as propagated, one a line.
std::string dump_cuts(const Executable& executable);

/// The operations on each device's parts and the moves between them, with cuts and bytes.
std::string dump_steps(const Executable& executable);

/// The plan: a line for each step with the places of its results.
std::string dump_plan(const Executable& executable);

/// Marks inputs, by Graph::inputs, and what replaces a weight or optimizer state (`w = w - ...`) if
/// that has no other mark than the weight had: as mark_sharding() marks it in a program.
void mark_inputs(Graph& graph, std::span<const std::optional<PartitionSpec>> marks);

/// All stages: what was traced, dump_cuts(), dump_steps() and dump_plan(), each under its name.
std::string dump(const Executable& executable);

/// What one device of a machine can do, for modelled times.
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

std::ostream& operator<<(std::ostream&, const Executable&) = delete;  // dump(executable)

/// A table for people.
std::string to_string(const StepReport& report);

/// The peak by FullestStep::Held::kind_name(), kinds without bytes left out. Beside these there are
/// "gaps", between the places of values that are not there at the same time.
std::vector<std::pair<std::string_view, std::size_t>> bytes_by_kind(const FullestStep& fullest,
                                                                    std::size_t peak_bytes);

struct SearchedPlan;  // runtime/spmd/plans.h
struct Changes;

struct PageOptions {
  std::string program = "program";   ///< what the page calls it: "step.swp"
  bool has_times = false;            ///< the modelled ones, of the report's machine
  std::size_t capacity_bytes = 0;    ///< of a device, for whether it fits; 0: not asked for
  double save_bytes_per_second = 0;  ///< of a checkpoint, for the time that it takes; 0: not told

  const SearchedPlan* search = nullptr;  ///< whose marks the program has; told first
  const Changes* changes = nullptr;      ///< of a program that does not fit; told last
};

/// What a program needs on its mesh, as `shardwise plan` prints it: memory, traffic, products,
/// modelled times, checkpoint and input. `report` is the executable's.
std::string page(const Executable& executable, const StepReport& report,
                 const PageOptions& options);

}  // namespace shardwise
