#include "shardwise/runtime/spmd/detail/html/page_data.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "shardwise/runtime/spmd/detail/html/collective_times.h"
#include "shardwise/runtime/spmd/detail/html/json_writer.h"
#include "shardwise/runtime/spmd/detail/html/memory_curve.h"
#include "shardwise/runtime/spmd/detail/planned.h"

namespace shardwise::detail {
namespace {

constexpr std::size_t kMostPoints = 1200, kMostMoves = 3000, kMostInputs = 3000;
constexpr std::size_t kMostTileNumbers = 300'000;  // over all pictures of tiles
constexpr std::size_t kMostText = 600;             // letters of a text from outside

/// The beginning of a very long text.
std::string shortened(std::string text) {
  if (text.size() <= kMostText) return text;
  text.resize(kMostText);
  return text + "..";
}

class PageData {
 public:
  PageData(const Executable& executable, const StepReport& report, const PageOptions& options,
           const LineOf& line_of)
      : executable_(executable),
        planned_(planned_program(executable)),
        report_(report),
        options_(options),
        line_of_(line_of) {}

  std::string text() {
    const CollectiveTimes times = collective_times(planned_, report_.machine, kMostMoves);
    json_.open('{').key("plan").token(plan_json(executable_, report_, options_));
    put_mesh();
    put_curve(times);
    put_collectives(times);
    put_inputs();
    return json_.close('}').done();
  }

 private:
  void put_mesh() {
    const Mesh& mesh = planned_.mesh;
    json_.key("mesh").open('{').key("axes").open('[');
    for (const Axis& axis : mesh.axes()) {
      json_.open('{').key("name").text(axis.name).key("size").number(axis.size).close('}');
    }
    json_.close(']').key("devices").open('[');
    for (std::int64_t p = 0; p < mesh.size(); ++p) json_.number(mesh.device_at(p));
    json_.close(']').close('}');
  }

  std::string line(NodeId node) const { return line_of_ ? shortened(line_of_(node)) : ""; }

  /// The node of the step's last operation.
  NodeId node_of(std::size_t step) const {
    const PartitionedGraph::Step& last =
        planned_.partitioned.steps[planned_.steps[step].steps.back()];
    if (const auto* const compute = std::get_if<PartitionedGraph::Compute>(&last)) {
      return compute->node;
    }
    if (const auto* const move = std::get_if<PartitionedGraph::Move>(&last)) return move->consumer;
    return std::get<PartitionedGraph::Loop>(last).node;
  }

  void put_curve(const CollectiveTimes& times) {
    const MemoryCurve curve = memory_curve(planned_, kMostPoints);
    json_.key("curve").open('{').key("steps").number(curve.steps);
    json_.key("fullest").number(curve.fullest).key("kinds").open('[');
    for (const std::string_view kind : curve.kinds) json_.text(kind);
    json_.close(']').key("points").open('[');
    std::map<Program::ValueId, std::size_t> numbers;  // of the named tensors
    std::vector<Program::ValueId> named;
    const auto put_tensors = [&](const std::vector<Program::ValueId>& values) {
      json_.open('[');
      for (const Program::ValueId value : values) {
        const auto [at, is_new] = numbers.emplace(value, named.size());
        if (is_new) named.push_back(value);
        json_.number(at->second);
      }
      json_.close(']');
    };
    for (const CurvePoint& point : curve.points) {
      const bool has_step = point.step < curve.steps;
      json_.open('{').key("step").number(point.step).key("name");
      json_.text(has_step ? shortened(name(planned_.lowered.program.steps()[point.step])) : "");
      json_.key("line").text(has_step ? line(node_of(point.step)) : "").key("seconds");
      options_.has_times&& has_step ? json_.number(times.begins[point.step]) : json_.null();
      json_.key("bytes").open('[');
      for (const std::size_t bytes : point.bytes) json_.number(bytes);
      json_.close(']').key("largest");
      put_tensors(point.largest);
      json_.close('}');
    }
    json_.close(']').key("always");
    put_tensors(curve.always);
    json_.key("tensors").open('[');
    for (const Program::ValueId id : named) {
      const Program::Value& value = planned_.lowered.program.value(id);
      json_.open('{').key("tensor").text(shortened(value.label));
      json_.key("kind").text(kind_name(planned_, id));
      json_.key("type").text(to_string(TensorType{value.dtype, value.shape}));
      json_.key("cut").text(value.layout.short_text());
      json_.key("bytes").number(planned_.plan.bytes[as_size(id)]).close('}');
    }
    json_.close(']').close('}');
  }

  void put_collectives(const CollectiveTimes& times) {
    json_.key("collectives").open('{').key("seconds");
    options_.has_times ? json_.number(times.seconds) : json_.null();
    json_.key("left_out").number(times.left_out);
    json_.key("left_out_bytes").number(times.left_out_bytes).key("moves").open('[');
    for (const TimedMove& move : times.moves) {
      json_.open('{').key("collective").text(name(move.kind)).key("axes").open('[');
      for (const std::string& axis : move.axes) json_.text(axis);
      json_.close(']').key("scope").text(shortened(move.scope));
      json_.key("tensor").text(shortened(move.tensor)).key("line").text(line(move.consumer));
      json_.key("is_asked_for").boolean(move.is_asked_for).key("times").number(move.times);
      json_.key("wire_bytes").number(move.wire_bytes);
      if (options_.has_times) {
        json_.key("begin").number(move.begin).key("seconds").number(move.seconds);
      }
      json_.close('}');
    }
    json_.close(']').close('}');
  }

  void put_inputs() {
    const std::vector<GraphInput>& inputs = executable_.graph().inputs;
    const std::vector<std::size_t> shown = largest_inputs();
    std::size_t left_out_bytes = 0;
    std::vector<bool> is_shown(inputs.size(), false);
    for (const std::size_t i : shown) is_shown[i] = true;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (!is_shown[i]) left_out_bytes += input_bytes(i);
    }
    json_.key("inputs").open('{').key("left_out").number(inputs.size() - shown.size());
    json_.key("left_out_bytes").number(left_out_bytes).key("rows").open('[');
    for (const std::size_t i : shown) put_input(i);
    json_.close(']').close('}').key("layouts").open('[');
    for (const ArraySpec& spec : layouts_) put_layout(spec);
    json_.close(']');
  }

  std::size_t input_bytes(std::size_t i) const {
    return planned_.plan.bytes[as_size(planned_.lowered.inputs[i])];
  }

  /// In the program's order.
  std::vector<std::size_t> largest_inputs() const {
    std::vector<std::size_t> all(executable_.graph().inputs.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    if (all.size() <= kMostInputs) return all;
    std::ranges::stable_sort(all, [&](auto a, auto b) { return input_bytes(a) > input_bytes(b); });
    all.resize(kMostInputs);
    std::ranges::sort(all);
    return all;
  }

  void put_input(std::size_t i) {
    const GraphInput& input = executable_.graph().inputs[i];
    const Node& node = executable_.graph().node(input.node);
    const ArraySpec spec = executable_.input_spec(i);
    // The first line describes the cut, which "cut" has already.
    std::string reasons = why(executable_, input.node, line_of_);
    reasons.erase(0, reasons.find('\n') + 1);
    json_.open('{').key("tensor").text(shortened(input.label)).key("kind").text(name(input.kind));
    json_.key("type").text(to_string(node.type)).key("cut").text(spec.sharding.spec().to_string());
    json_.key("mark");
    node.mark ? json_.text(node.mark->to_string()) : json_.null();
    json_.key("bytes").number(input_bytes(i));
    json_.key("whole_bytes").number(num_bytes(spec.shape, size_bytes(spec.dtype)));
    json_.key("line").text(line(input.node)).key("why").text(shortened(std::move(reasons)));
    const auto key = std::pair(to_string(spec.shape), spec.sharding.spec().to_string());
    const auto [at, is_new] = layout_numbers_.emplace(key, layouts_.size());
    if (is_new) layouts_.push_back(spec);
    json_.key("layout").number(at->second).close('}');
  }

  /// Where tiles begin in each dim, with the dim's end, and the tile at each mesh position, counted
  /// row-major; null if there are too many.
  void put_layout(const ArraySpec& spec) {
    const Sharding& sharding = spec.sharding;
    std::size_t needed = as_size(planned_.mesh.size());
    for (std::size_t dim = 0; dim < sharding.rank(); ++dim) needed += as_size(sharding.tiles(dim));
    if (tile_numbers_ + needed > kMostTileNumbers) {
      json_.null();
      return;
    }
    tile_numbers_ += needed;
    json_.open('{').key("cuts").open('[');
    for (std::size_t dim = 0; dim < sharding.rank(); ++dim) {
      json_.open('[');
      for (std::int64_t tile = 0; tile < sharding.tiles(dim); ++tile) {
        json_.number(sharding.tile_range(dim, tile, spec.shape[dim]).begin);
      }
      json_.number(spec.shape[dim]).close(']');
    }
    json_.close(']').key("tiles").open('[');
    for (std::int64_t p = 0; p < planned_.mesh.size(); ++p) {
      std::int64_t number = 0;
      for (std::size_t dim = 0; dim < sharding.rank(); ++dim) {
        number = number * sharding.tiles(dim) + sharding.tile_index(p, dim);
      }
      json_.number(number);
    }
    json_.close(']').close('}');
  }

  const Executable& executable_;
  const PlannedProgram& planned_;
  const StepReport& report_;
  const PageOptions& options_;
  const LineOf& line_of_;
  JsonWriter json_;
  std::map<std::pair<std::string, std::string>, std::size_t> layout_numbers_;
  std::vector<ArraySpec> layouts_;
  std::size_t tile_numbers_ = 0;
};

}  // namespace

std::string page_data(const Executable& executable, const StepReport& report,
                      const PageOptions& options, const LineOf& line_of) {
  return PageData(executable, report, options, line_of).text();
}

}  // namespace shardwise::detail
