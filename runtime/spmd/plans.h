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

// Comparisons of plans: a program on other meshes, with other marks. Nothing runs. Attention is
// planned as Attention::fused; with_written_attention() of the program counts its scores.

/// The cost of a program on a mesh, as in a training loop: nobody else holds replaced tensors.
/// Bytes are planned, times are modelled.
struct PlanCost {
  std::size_t peak_bytes = 0;  ///< of the device that needs most
  std::size_t wire_bytes = 0;  ///< that one device sends in rings

  double compute_seconds = 0;  ///< of operations that take longer to compute than to read and write
  double memory_seconds = 0;   ///< of the others
  double wire_seconds = 0;     ///< of collectives, one after another

  double seconds() const { return compute_seconds + memory_seconds + wire_seconds; }

  /// The longest part: "compute", "memory" or "wire".
  std::string_view bound() const;
};

/// "1.234 s", "56.789 ms"
std::string time_text(double seconds);

/// A JSON object; without times these are null.
std::string cost_json(const PlanCost& cost, bool has_times);

/// Plans the program without the place of each byte: in less time than an Executable takes. Without
/// a machine times are 0. Throws as Executable does.
PlanCost plan_cost(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                   const std::optional<Machine>& machine);

/// The needs of a step for storage.
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

  /// Called now and then on the calling thread with the numbers of made plans and of all plans.
  std::function<void(std::int64_t done, std::int64_t of)> progress = {};
};

/// A plan as people write them: "data", "fsdp", "tensor over model".
struct HandMadePlan {
  std::string name;
  PlanCost cost;
  bool fits = false;
};

/// Marks chosen for parameters, their optimizer state and the data; very small tensors keep theirs.
struct SearchedPlan {
  std::shared_ptr<const Graph> graph;   ///< with these marks
  std::vector<std::string> marks = {};  ///< in the form of --mark: "layers.*.wq=model,-"
  PlanCost cost = {};
  bool fits = false;
  std::int64_t plans = 0;  ///< number of plans made
  bool is_exact = false;   ///< all choices were planned: no other is better
  std::vector<HandMadePlan> hand_made = {};
};

/// A program on one mesh.
struct MeshPlan {
  Mesh mesh;
  std::optional<PlanCost> cost;  ///< none if the program cannot be planned on it
  std::string refused;           ///< reason why not
  bool fits = false;
  std::optional<SearchedPlan> searched = {};  ///< of search_meshes()
};

/// The axes that marks name, in the order of their first use in the program.
std::vector<std::string> mark_axes(const Graph& graph);

inline constexpr std::int64_t kMostMeshDevices = 4096;

/// The program on all meshes of this number of devices with the axes that its marks name, sizes of
/// 1 allowed: those that fit first, then the shortest modelled time, then the fewest bytes at the
/// peak. If the machine's nodes are smaller, the last axis, whose devices are neighbours, is the
/// best. Throws invalid_argument for a program without marks, and unless 1 <= devices <=
/// kMostMeshDevices; unsupported if there are more than 1,000 meshes.
std::vector<MeshPlan> plan_meshes(const std::shared_ptr<const Graph>& graph, std::int64_t devices,
                                  const CompareOptions& options);

/// The same with the marks that search_marks() chooses on each mesh. Axes are those of the marks,
/// and if these are fewer than two, also "data" and "model". Takes as long as a search does, for
/// each mesh.
std::vector<MeshPlan> search_meshes(const std::shared_ptr<const Graph>& graph, std::int64_t devices,
                                    const CompareOptions& options);

// Changes that make a program fit.

/// A change of a plan, and the resulting cost of a step.
struct Change {
  enum class Kind { marks, mesh, batch, recompute };
  Kind kind;
  std::string text;                     ///< "batch 32 in place of 64"
  std::vector<std::string> marks = {};  ///< of the kind marks: in the form of --mark
  std::optional<Mesh> mesh = {};
  std::int64_t batch = 0;  ///< the largest that fits

  PlanCost cost = {};
  bool fits = false;
  double part = 1;  ///< share of the batch in a step: 0.5 for half of it

  /// Seconds for a whole batch.
  double seconds() const { return cost.seconds() / part; }
};

/// "marks", "mesh", "batch", "recompute"
std::string_view name(Change::Kind kind);

struct Changes {
  /// At most one of a kind. Those that fit first, then the shortest time for a whole batch.
  std::vector<Change> changes;

  /// The reason why the batch cannot be changed; "" if it can.
  std::string batch_refused;
};

/// The cheapest change of each kind with which no device needs more than the capacity, or the one
/// that comes nearest: marks of inputs, over one more axis each; another mesh of as many devices; a
/// smaller batch; repeating blocks, by the program's scopes, recomputed for the gradient. Plans a
/// bounded number of attempts.
Changes changes_that_fit(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                         const CompareOptions& options);

// Reasons for the cut of a tensor, and edits that would change it.

/// Names the origin of a node: "line 41", "train.py:12"; "" if unknown.
using LineOf = std::function<std::string(NodeId)>;

/// The node that a text names: an input by its label, any other as "%98". Throws no_such_name.
NodeId find_tensor(const Graph& graph, std::string_view text);

/// The origin of the axes of a dim.
struct CutReason {
  std::size_t dim = 0;
  std::string axes;              ///< "data+model"; "-" for a whole dim
  std::vector<NodeId> way;       ///< the neighbours that they came through; the last may be marked
  std::optional<NodeId> marked;  ///< the node whose mark it is: itself, or the last of the way
};

/// The reasons by dim.
std::vector<CutReason> cut_reasons(const Executable& executable, NodeId node);

/// "dim 1 by model: because line 2 marks "w1" as -,model", a line for each dim, under a line about
/// the node; then the wishes that were dropped.
std::string why(const Executable& executable, NodeId node, const LineOf& line_of);

// A plan for programs and for a browser.

/// The content of page(), as a JSON object: docs/planning.md, "As a page".
std::string plan_json(const Executable& executable, const StepReport& report,
                      const PageOptions& options);

/// One file of HTML that needs no other and no network: memory over the step, collectives on a
/// timeline, the inputs as a tree, the tiles of each on each device, and tables. Holds plan_json()
/// and repeats its numbers only. For large programs the largest items are shown: a few MB.
std::string plan_html(const Executable& executable, const StepReport& report,
                      const PageOptions& options, const LineOf& line_of);

/// Marks of other inputs with which a tensor is cut as wanted.
struct MarkEdit {
  std::vector<std::string> marks;  ///< in the form of --mark
  PlanCost cost;
};

/// Obstacles to another cut of a tensor, and the effect of that cut.
struct WhyNot {
  std::string now, wanted;
  bool is_so_already = false;
  std::vector<std::string> uneven;   ///< how dims are handled that do not divide
  std::vector<std::string> against;  ///< contrary marks, and wishes that were granted
  PlanCost cost_now, cost_wanted;    ///< wanted: with that mark on the tensor itself
  std::vector<MarkEdit> edits;       ///< the smallest found, the cheapest first
  bool has_tried_all = false;        ///< all single marks, and all pairs if no single one works
};

/// The reasons why a tensor is not cut as `wanted`. Tries marks of other inputs, one and then two
/// at a time, as far as a bounded number of propagations goes. Throws no_such_name and
/// invalid_argument for a spec that does not fit.
WhyNot why_not(const std::shared_ptr<const Graph>& graph, const Mesh& mesh, NodeId node,
               const PartitionSpec& wanted, const LineOf& line_of, const CompareOptions& options);

/// Chooses even cuts of inputs over the axes of a mesh: those that fit, in the shortest modelled
/// time; if no cut found fits, the lowest peak. Tensors of repeating layers are cut in the same
/// way. For a small program all choices are planned; for any other a bounded number, starting with
/// typical hand-written plans and the program's own marks, and the result is never worse than any
/// of these. Marks of other nodes stay. Errors of planning pass through.
SearchedPlan search_marks(const std::shared_ptr<const Graph>& graph, const Mesh& mesh,
                          const CompareOptions& options);

}  // namespace shardwise
