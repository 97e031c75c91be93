#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/spmd/executable.h"
#include "shardwise/shard/error.h"
#include "shardwise/shard/mesh.h"

namespace shardwise {

// Plans beside each other: a program on other meshes, with other marks. Nothing runs. Attention is
// planned as Attention::fused; with_written_attention() of the program counts its scores.

/// What a program costs on a mesh, as in a training loop: what is replaced is held by nobody else.
/// Bytes are planned, times are modelled.
struct PlanCost {
  std::size_t peak_bytes = 0;  ///< of the device that needs most
  std::size_t wire_bytes = 0;  ///< that one device sends in rings

  double compute_seconds = 0;  ///< of operations that take longer to compute than to read and write
  double memory_seconds = 0;   ///< of the others
  double wire_seconds = 0;     ///< of collectives, one after another

  double seconds() const { return compute_seconds + memory_seconds + wire_seconds; }

  /// What takes the longest: "compute", "memory" or "wire".
  std::string_view bound() const;
};

/// "1.234 s", "56.789 ms"
std::string time_text(double seconds);

/// A JSON object; without times these are null.
std::string cost_json(const PlanCost& cost, bool has_times);

/// Plans the program without saying which bytes go where: in less time than an Executable takes.
/// Without a machine times are 0. Throws what that throws.
PlanCost plan_cost(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                   const std::optional<Machine>& machine);

/// What a step asks of storage.
struct StorageNeeds {
  std::size_t parameter_bytes = 0, optimizer_bytes = 0;  ///< of a checkpoint, before it is packed
  std::size_t device_bytes = 0;  ///< of these, on the device that holds most: an asynchronous save
                                 ///< copies them to the host
  std::size_t input_bytes = 0;   ///< of all inputs of the kind loader
};
StorageNeeds storage_needs(const Executable& executable);

struct CompareOptions {
  std::optional<Machine> machine = {};  ///< for modelled times; none: times are 0
  std::size_t capacity_bytes = 0;       ///< of a device, for what fits; 0: everything does
  int threads = 0;                      ///< 0: as many as the machine has cores, at most 8

  /// Called now and then on the calling thread: how many plans of how many are made.
  std::function<void(std::int64_t done, std::int64_t of)> progress = {};
};

/// A plan as people write them: "data", "fsdp", "tensor over model".
struct HandMadePlan {
  std::string name;
  PlanCost cost;
  bool fits = false;
};

/// Marks that were chosen for parameters, their optimizer state and the data; those of what holds
/// very little stay.
struct SearchedPlan {
  std::shared_ptr<const Graph> graph;   ///< with these marks
  std::vector<std::string> marks = {};  ///< as --mark takes them: "layers.*.wq=model,-"
  PlanCost cost = {};
  bool fits = false;
  std::int64_t plans = 0;  ///< that were made
  bool is_exact = false;   ///< all choices were planned: no other is better
  std::vector<HandMadePlan> hand_made = {};
};

/// A program on one mesh.
struct MeshPlan {
  Mesh mesh;
  std::optional<PlanCost> cost;  ///< none if the program cannot be planned on it
  std::string refused;           ///< why not
  bool fits = false;
  std::optional<SearchedPlan> searched = {};  ///< of search_meshes()
};

/// The axes that marks name, in the order in which the program first has them.
std::vector<std::string> mark_axes(const Graph& graph);

inline constexpr std::int64_t kMostMeshDevices = 4096;

/// The program on all meshes of this number of devices with the axes that its marks name, sizes of
/// 1 allowed: what fits first, then the shortest modelled time, then the fewest bytes at the peak.
/// If the machine's nodes are smaller, the last axis, whose devices are neighbours, is the best.
/// Throws invalid_argument for a program without marks, and unless 1 <= devices <=
/// kMostMeshDevices; unsupported if there are more than 1,000 meshes.
std::vector<MeshPlan> plan_meshes(const std::shared_ptr<const Graph>& graph, std::int64_t devices,
                                  const CompareOptions& options);

/// The same with the marks that search_marks() chooses on each mesh. Axes are those of the marks,
/// and if these are fewer than two, "data" and "model" beside them. Takes as long as a search does,
/// for each mesh.
std::vector<MeshPlan> search_meshes(const std::shared_ptr<const Graph>& graph, std::int64_t devices,
                                    const CompareOptions& options);

// What makes a program fit.

/// Something that may be done otherwise, and what a step costs then.
struct Change {
  enum class Kind { marks, mesh, batch, recompute };
  Kind kind;
  std::string text;                     ///< "batch 32 in place of 64"
  std::vector<std::string> marks = {};  ///< of the kind marks: as --mark takes them
  std::optional<Mesh> mesh = {};
  std::int64_t batch = 0;  ///< the largest that fits

  PlanCost cost = {};
  bool fits = false;
  double part = 1;  ///< of the batch that a step takes: 0.5 of one that is half as large

  /// For a whole batch.
  double seconds() const { return cost.seconds() / part; }
};

/// "marks", "mesh", "batch", "recompute"
std::string_view name(Change::Kind kind);

struct Changes {
  /// At most one of a kind. What fits first, then the shortest time for a whole batch.
  std::vector<Change> changes;

  /// Why the batch cannot be changed; "" if it can.
  std::string batch_refused;
};

/// The cheapest change of each kind with which no device needs more than the capacity, or the one
/// that comes nearest: marks of inputs, over one more axis each; another mesh of as many devices;
/// a smaller batch; blocks that repeat, as the program's scopes say, computed again for the
/// gradient. Plans what it tries, a bounded number.
Changes changes_that_fit(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                         const CompareOptions& options);

// Why a tensor is cut as it is, and what would cut it otherwise.

/// Says where a node comes from: "line 41", "train.py:12"; "" if that is not known.
using LineOf = std::function<std::string(NodeId)>;

/// The node that a text names: an input by its label, any other as "%98". Throws no_such_name.
NodeId find_tensor(const Graph& graph, std::string_view text);

/// Where the axes of a dim come from.
struct CutReason {
  std::size_t dim = 0;
  std::string axes;              ///< "data+model"; "-" for a whole dim
  std::vector<NodeId> way;       ///< the neighbours that they came through; the last may be marked
  std::optional<NodeId> marked;  ///< the node whose mark it is: itself, or the last of the way
};

/// By dim.
std::vector<CutReason> cut_reasons(const Executable& executable, NodeId node);

/// "dim 1 by model: because line 2 marks "w1" as -,model", a line for each dim, under what the node
/// is; then the wishes that were not heard.
std::string why(const Executable& executable, NodeId node, const LineOf& line_of);

// A plan for programs and in a browser.

/// What page() says, as a JSON object: docs/planning.md, "As a page".
std::string plan_json(const Executable& executable, const StepReport& report,
                      const PageOptions& options);

/// One file of HTML that needs no other and no network: memory over the step, collectives on a
/// timeline, the inputs as a tree, the tiles of each on each device, and tables. Holds plan_json()
/// and no other numbers of what that says. Of large programs what is largest is shown: a few MB.
std::string plan_html(const Executable& executable, const StepReport& report,
                      const PageOptions& options, const LineOf& line_of);

/// Marks of other inputs with which a tensor is cut as wanted.
struct MarkEdit {
  std::vector<std::string> marks;  ///< as --mark takes them
  PlanCost cost;
};

/// What stands against another cut of a tensor, and what it would bring.
struct WhyNot {
  std::string now, wanted;
  bool is_so_already = false;
  std::vector<std::string> uneven;   ///< of dims that do not divide: what is done with them
  std::vector<std::string> against;  ///< marks that say otherwise, and wishes that were heard
  PlanCost cost_now, cost_wanted;    ///< wanted: with that mark on the tensor itself
  std::vector<MarkEdit> edits;       ///< the smallest that were found, the cheapest first
  bool has_tried_all = false;        ///< all single marks, and all pairs if no single one does
};

/// Why a tensor is not cut as `wanted`. Tries marks of other inputs, one and then two at a time, as
/// far as a bounded number of propagations goes. Throws no_such_name and invalid_argument for a
/// spec that does not fit.
WhyNot why_not(const std::shared_ptr<const Graph>& graph, const Mesh& mesh, NodeId node,
               const PartitionSpec& wanted, const LineOf& line_of, const CompareOptions& options);

/// Chooses how inputs are cut, evenly, over the axes of a mesh: what fits, in the shortest modelled
/// time; if nothing is found that fits, the lowest peak. Tensors of layers that repeat are cut
/// alike. Of a small program all choices are planned; of any other a bounded number, starting with
/// what people write by hand and with the program's own marks, than all of which it is never worse.
/// Marks of other nodes stay. Throws what planning throws.
SearchedPlan search_marks(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                          const CompareOptions& options);

}  // namespace shardwise
