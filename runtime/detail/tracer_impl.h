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
  std::vector<std::byte> host = {};  ///< the value, until a step needs it
  bool on_host = false;
  bool is_marked = false;                  ///< by the user; else an array's mark is how it is cut
  std::optional<PartitionSpec> mark = {};  ///< of a tensor with a value

  NodeId node = -1;
  std::int64_t step = -1;  ///< of the node

  std::string lost = {};  ///< reason why it has no value and will get none

  bool is_abstract = false;  ///< it has a type and never a value

  bool has_value() const { return array.has_value() || on_host; }
  bool may_be_input() const { return has_value() || is_abstract; }
};

/// State shared by a tracer and its tensors.
struct TracerImpl : std::enable_shared_from_this<TracerImpl> {
  using State = Tensor::State;

  TracerImpl(Devices& tracer_devices, TracerOptions tracer_options)
      : devices(tracer_devices),
        options(std::move(tracer_options)),
        mesh(options.mesh),
        known(options.executables) {}

  /// The sharding of a tensor with a mark.
  static Sharding marked_sharding(const State& state, const Mesh& mesh);

  /// True if it is recorded in this step, in an open body or around one.
  bool is_recorded(const State& state) const { return graph_of(state) != nullptr; }

  /// The graph with the tensor's node; null if this step has no such node.
  GraphBuilder* graph_of(const State& state) const {
    if (state.node < 0) return nullptr;
    if (state.step == step) return recording.get();
    for (const Outside& one : outside) {
      if (state.step == one.step) return one.recording.get();
    }
    return nullptr;
  }

  GraphBuilder& graph() {
    if (!recording) {
      recording = std::make_shared<GraphBuilder>();
      set_scope(scope);
      // Reserves as many as the step before had: nodes are large, and moving them takes longer than
      // making them.
      if (last != nullptr) {
        recording->nodes.reserve(last->graph().nodes.size());
        pending.reserve(last->graph().nodes.size());
      }
      stopwatch = Stopwatch();
    }
    return *recording;
  }

  /// Operations recorded from now on belong to this scope.
  void set_scope(const std::string& path) {
    scope = path;
    if (!recording) return;
    std::vector<std::string>& scopes = recording->scopes;
    const auto at = std::find(scopes.begin(), scopes.end(), path);
    recording->scope = static_cast<std::int32_t>(at - scopes.begin());
    if (at == scopes.end()) scopes.push_back(path);
  }

  /// Returns the result of body(). Its errors name the operation, the tensor, and the place in the
  /// program.
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

  /// A recorded tensor.
  Tensor wrap(const NodeRef& made);

  void take_mesh(const Mesh& wanted);

  void mark(const std::shared_ptr<State>& state, const Mesh& wanted, const PartitionSpec& spec);

  /// The spec of all dims, and the number of parts of each dim.
  std::pair<PartitionSpec, Dims> parts(const PartitionSpec& spec, std::size_t rank) const;

  void forget() {
    recording.reset();
    inputs.clear();
    pending.clear();
    step = ++steps;
  }

  /// While it lives, operations are recorded in the body of a scan.
  class InBody {
   public:
    InBody(TracerImpl& tracer, GraphBuilder& body);
    ~InBody();
    InBody(const InBody&) = delete;
    InBody& operator=(const InBody&) = delete;

   private:
    TracerImpl& tracer_;
  };

  /// Throws invalid_argument if a body is open.
  void check_no_body(const char* operation) const;

  using States = std::vector<std::shared_ptr<State>>;

  /// Runs the recorded step, and places tensors that are only marked.
  void run();

  /// Compiles the recorded step, which is then forgotten without a run.
  std::shared_ptr<const Executable> plan();

 private:
  /// A recorded step, removed from the tracer.
  struct Recorded {
    std::shared_ptr<Graph> graph;
    States bound, made;
  };
  Recorded take_recorded();

  /// Copies the user's marks of weights to the tensors that replace them.
  static void keep_marks(const Recorded& recorded);

  CompileOptions compile(const Recorded& recorded);  ///< into `last`
  void run(const Recorded& recorded);
  CompileOptions compile_options(const States& bound) const;

  /// Places marked tensors that are not among `bound` on the devices.
  void place_marked(const States& bound);

  /// Throws resource_exhausted if the step and its tensors from the host do not fit.
  void check_memory(const States& bound, const Executable& found) const;

  /// The inputs' arrays, on the devices. Inputs that may be donated are held only by the step.
  void upload(const States& bound, const Executable& found, const CompileOptions& compile,
              std::vector<std::optional<ShardedArray>>& arrays);

  /// After a step that did not run because of `why`: tensors that were to replace weights get the
  /// weights' values.
  void give_back(const Recorded& recorded, const char* why) const noexcept;

 public:
  Devices& devices;
  TracerOptions options;
  std::optional<Mesh> mesh;
  std::string scope;

  std::shared_ptr<GraphBuilder> recording;
  std::vector<std::shared_ptr<State>> inputs;  ///< by Graph::inputs
  std::vector<std::weak_ptr<State>> pending;   ///< recorded in this step
  std::int64_t step = 0;   ///< number of the open step or body, to which recorded nodes belong
  std::int64_t steps = 0;  ///< steps and bodies so far
  Stopwatch stopwatch;

  /// A graph around the open body; the outermost comes first.
  struct Outside {
    std::shared_ptr<GraphBuilder> recording;
    std::vector<std::weak_ptr<State>> pending;
    std::int64_t step;
  };
  std::vector<Outside> outside;

  std::vector<std::weak_ptr<State>> marked;  ///< have a value, and are not yet cut like their mark
  bool has_gone = false;                     ///< the Tracer is gone; tensors are left

  detail::KnownExecutables known;
  std::shared_ptr<const Executable> last;
  TracerCounters counters;
  StepSeconds seconds;
};

}  // namespace shardwise
