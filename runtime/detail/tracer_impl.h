#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "shardwise/runtime/spmd/detail/known_executables.h"
#include "shardwise/runtime/stopwatch.h"
#include "shardwise/runtime/tracer.h"
#include "shardwise/shard/error.h"

namespace shardwise {

/// The present state of a tensor: a value, a node of the step that is being recorded, or both.
struct Tensor::State {
  std::shared_ptr<TracerImpl> tracer;
  TensorType type;
  std::string label;
  MemoryKind kind = MemoryKind::array;

  std::optional<ShardedArray> array = {};
  std::vector<std::byte> host = {};  ///< the value, as long as no step has needed it
  bool on_host = false;
  bool is_marked = false;                  ///< by the user; else an array's mark is how it is cut
  std::optional<PartitionSpec> mark = {};  ///< of a tensor with a value

  NodeId node = -1;
  std::int64_t step = -1;  ///< of the node

  std::string lost = {};  ///< why it has no value and will get none

  bool is_abstract = false;  ///< it has a type and never a value

  bool has_value() const { return array.has_value() || on_host; }
  bool may_be_input() const { return has_value() || is_abstract; }
};

/// What a tracer and its tensors share.
struct TracerImpl : std::enable_shared_from_this<TracerImpl> {
  using State = Tensor::State;

  TracerImpl(Devices& tracer_devices, TracerOptions tracer_options)
      : devices(tracer_devices),
        options(std::move(tracer_options)),
        mesh(options.mesh),
        known(options.executables) {}

  /// How a tensor is cut that has a mark.
  static Sharding marked_sharding(const State& state, const Mesh& mesh);

  /// In this step, in a body that is open or around one.
  bool is_recorded(const State& state) const { return graph_of(state) != nullptr; }

  /// The graph that has the tensor's node; null if this step has none.
  Graph* graph_of(const State& state) const {
    if (state.node < 0) return nullptr;
    if (state.step == step) return recording.get();
    for (const Outside& one : outside) {
      if (state.step == one.step) return one.recording.get();
    }
    return nullptr;
  }

  Graph& graph() {
    if (!recording) {
      recording = std::make_shared<Graph>();
      set_scope(scope);
      // The number that the step before had: nodes are large, and moving them takes longer than
      // making.
      if (last != nullptr) {
        recording->nodes.reserve(last->graph().nodes.size());
        pending.reserve(last->graph().nodes.size());
      }
      stopwatch = Stopwatch();
    }
    return *recording;
  }

  /// Operations recorded from now on belong to it.
  void set_scope(const std::string& path) {
    scope = path;
    if (!recording) return;
    std::vector<std::string>& scopes = recording->scopes;
    const auto at = std::find(scopes.begin(), scopes.end(), path);
    recording->scope = static_cast<std::int32_t>(at - scopes.begin());
    if (at == scopes.end()) scopes.push_back(path);
  }

  /// The result of body(). Its errors name the operation, the tensor, and the place in the program.
  template <class Body>
  auto located(std::string_view operation, const State& state, const Body& body) {
    try {
      return body();
    } catch (const Error& error) {
      throw Error(error.code(), where(operation, state) + ": " + error.what());
    }
  }
  std::string where(std::string_view operation, const State& state);

  /// The tensor's node in this step; a tensor with a value becomes an input.
  NodeRef node(const std::shared_ptr<State>& state);

  /// A tensor with a value on the host.
  Tensor tensor(const TensorType& type, std::span<const std::byte> data, std::string_view label,
                MemoryKind kind);

  /// A tensor that has been recorded.
  Tensor wrap(const NodeRef& made);

  void take_mesh(const Mesh& wanted);

  void mark(const std::shared_ptr<State>& state, const Mesh& wanted, const PartitionSpec& spec);

  /// The spec of all dims, and into how many parts it cuts each dim.
  std::pair<PartitionSpec, Dims> parts(const PartitionSpec& spec, std::size_t rank) const;

  void forget() {
    recording.reset();
    inputs.clear();
    pending.clear();
    step = ++steps;
  }

  /// Until it goes, operations are recorded in the body of a scan.
  class InBody {
   public:
    InBody(TracerImpl& tracer, Graph& body);
    ~InBody();
    InBody(const InBody&) = delete;
    InBody& operator=(const InBody&) = delete;

   private:
    TracerImpl& tracer_;
  };

  /// Throws invalid_argument if a body is open.
  void check_no_body(const char* operation) const;

  using States = std::vector<std::shared_ptr<State>>;

  /// Runs what has been recorded, and places tensors that are only marked.
  void run();

  /// Compiles what has been recorded; it is forgotten, and not run.
  std::shared_ptr<const Executable> plan();

 private:
  /// What has been recorded, which is then forgotten.
  struct Recorded {
    std::shared_ptr<Graph> graph;
    States bound, made;
  };
  Recorded take_recorded();

  /// Tensors that replace weights which the user marked are marked as these are.
  static void keep_marks(const Recorded& recorded);

  CompileOptions compile(const Recorded& recorded);  ///< into `last`
  void run(const Recorded& recorded);
  CompileOptions compile_options(const States& bound) const;

  /// Takes tensors that are marked, and not among `bound`, to the devices as they are marked.
  void place_marked(const States& bound);

  /// Throws resource_exhausted if the step and its tensors from the host do not fit.
  void check_memory(const States& bound, const Executable& found) const;

  /// The inputs' arrays, on the devices. Only the step holds those that may be donated.
  void upload(const States& bound, const Executable& found, const CompileOptions& compile,
              std::vector<std::optional<ShardedArray>>& arrays);

  /// Of a step that did not run, as `why` says: gives the tensors that were to replace weights the
  /// weights' values.
  void give_back(const Recorded& recorded, const char* why) const noexcept;

 public:
  Devices& devices;
  TracerOptions options;
  std::optional<Mesh> mesh;
  std::string scope;

  std::shared_ptr<Graph> recording;
  std::vector<std::shared_ptr<State>> inputs;  ///< by Graph::inputs
  std::vector<std::weak_ptr<State>> pending;   ///< recorded in this step
  std::int64_t step = 0;   ///< or the body that is open: of the nodes that are recorded
  std::int64_t steps = 0;  ///< and bodies that there were
  Stopwatch stopwatch;

  /// Of the graphs around the body that is open, the outermost first.
  struct Outside {
    std::shared_ptr<Graph> recording;
    std::vector<std::weak_ptr<State>> pending;
    std::int64_t step;
  };
  std::vector<Outside> outside;

  std::vector<std::weak_ptr<State>> marked;  ///< with a value, and not yet cut as they are marked
  bool has_gone = false;                     ///< the Tracer; tensors are left

  detail::KnownExecutables known;
  std::shared_ptr<const Executable> last;
  TracerCounters counters;
  StepSeconds seconds;
};

}  // namespace shardwise
