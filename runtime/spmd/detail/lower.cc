#include "shardwise/runtime/spmd/detail/lower.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "shardwise/runtime/kernels/detail/elementwise.h"
#include "shardwise/runtime/kernels/detail/scratch.h"
#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/runtime/program/detail/move.h"
#include "shardwise/runtime/spmd/detail/control/lower_body.h"
#include "shardwise/shard/error.h"

namespace shardwise {
namespace {

using ValueId = Program::ValueId;
using PartValue = PartitionedGraph::ValueId;
using Compute = PartitionedGraph::Compute;

/// One operand of an elementwise kernel: a value, and the broadcast that repeats it, if any.
struct KernelInput {
  PartValue value;
  const Node* broadcast = nullptr;

  bool operator==(const KernelInput&) const = default;
};

/// The strides of an operand of this local shape in the loops over the result.
Dims strides_of(const Shape& local, const Shape& whole, const Node* broadcast, std::size_t rank) {
  if (broadcast == nullptr) return row_major_strides(local);
  const Dims own = row_major_strides(local);
  Dims strides = Dims::filled(rank, 0);
  for (std::size_t i = 0; i < own.size(); ++i) {
    const std::size_t dim = as_size(std::get<DimsAttributes>(broadcast->attributes).dims[i]);
    if (whole[i] == broadcast->type.shape[dim]) strides[dim] = own[i];
  }
  return strides;
}

void refuse_nan(DType dtype, const BoxView& made) {
  if (dtype != DType::f64 && dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) {
    return;
  }
  std::size_t element = 0;
  for_each_index(made.box, [&](const Index& at) {
    double value = 0;
    convert(dtype, made.data + element++ * size_bytes(dtype), DType::f64,
            reinterpret_cast<std::byte*>(&value), 1);
    if (!std::isnan(value)) return;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("found NaN at {}, needed numbers", to_string(at)));
  });
}

std::vector<std::int64_t> input_of_nodes(const Graph& graph) {
  std::vector<std::int64_t> input_of(graph.nodes.size(), -1);
  for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
    input_of[as_size(graph.inputs[i].node)] = static_cast<std::int64_t>(i);
  }
  return input_of;
}

class Lowering {
 public:
  Lowering(std::shared_ptr<const Graph> graph, const Mesh& mesh,
           const PartitionedGraph& partitioned, NanCheck nan_check, MovePlans move_plans)
      : graph_(std::move(graph)),
        mesh_(mesh),
        partitioned_(partitioned),
        nan_check_(nan_check),
        move_plans_(move_plans),
        result_{Program(mesh), {}, {}, {}, {}, {}, {}, {}},
        ids_(partitioned.values.size(), -1),
        maker_(partitioned.values.size(), nullptr),
        input_of_(input_of_nodes(*graph_)) {
    for (const PartitionedGraph::Step& step : partitioned.steps) {
      if (const auto* const compute = std::get_if<Compute>(&step)) {
        maker_[as_size(compute->result)] = compute;
      }
    }
  }

  LoweredProgram run(const std::vector<FusedStep>& steps) {
    for (std::size_t i = 0; i < partitioned_.inputs.size(); ++i) {
      const GraphInput& input = graph_->inputs[i];
      result_.inputs.push_back(add_value(partitioned_.inputs[i], input.label, input.kind));
    }
    find_kernel_results(steps);
    for (const FusedStep& step : steps) {
      result_.in_place.emplace_back();
      if (step.is_elementwise) {
        add_kernel(step);
      } else {
        const PartitionedGraph::Step& one = partitioned_.steps[step.steps.front()];
        if (const auto* const compute = std::get_if<Compute>(&one)) {
          add(*compute);
        } else if (const auto* const loop = std::get_if<PartitionedGraph::Loop>(&one)) {
          add(*loop);
        } else {
          add_moves(step.steps);
        }
      }
    }
    for (const PartValue output : partitioned_.outputs) result_.outputs.push_back(id(output));
    return std::move(result_);
  }

 private:
  TensorType type_of(PartValue value) const {
    return shardwise::type_of(*graph_, partitioned_.values[as_size(value)]);
  }

  const Layout& layout(const Cut& cut, const Shape& shape) {
    const bool is_plain = !has_tiles(cut) && !has_windows(cut);
    for (const KnownLayout& known : layouts_) {
      if (known.cut == cut && (is_plain || known.shape == shape)) return known.layout;
    }
    layouts_.push_back({cut, shape, to_layout(cut, mesh_, shape)});
    return layouts_.back().layout;
  }

  ValueId add_value(PartValue value, std::string label, MemoryKind kind) {
    const TensorType type = type_of(value);
    const Cut& cut = partitioned_.values[as_size(value)].cut;
    const ValueId id = result_.program.add_value(
        {type.dtype, type.shape, layout(cut, type.shape), std::move(label), kind});
    ids_[as_size(value)] = id;
    result_.alias_of.push_back(id);
    result_.alias_offsets.push_back(0);
    result_.nodes.push_back(partitioned_.values[as_size(value)].node);
    return id;
  }

  ValueId id(PartValue value) const { return ids_[as_size(value)]; }

  void add_call(Program::Call call) {
    if (nan_check_ == NanCheck::on) {
      std::vector<DType> dtypes;
      for (const ValueId output : call.outputs) {
        dtypes.push_back(result_.program.value(output).dtype);
      }
      call.function = [inner = std::move(call.function), dtypes](const LocalContext& context) {
        inner(context);
        for (std::size_t i = 0; i < dtypes.size(); ++i) refuse_nan(dtypes[i], context.outputs[i]);
      };
    }
    result_.program.add_step(std::move(call));
  }

  std::string label(NodeId id) const {
    const Node& node = graph_->node(id);
    const std::int64_t input = input_of_[as_size(id)];
    if (input >= 0) return graph_->inputs[as_size(input)].label;
    return fmt::format("{} %{}{}", name(node.op), id, in_scope(*graph_, node.scope));
  }

  void add(const Compute& compute) {
    const Node& node = graph_->node(compute.node);
    Program::Call call{label(compute.node), {}, {}, {}};
    for (const PartValue operand : compute.operands) call.inputs.push_back(id(operand));
    call.outputs = {add_value(compute.result, call.name, MemoryKind::activation)};
    if (const std::optional<std::size_t> offset = place_in_input(node, call)) {
      const ValueId input = result_.alias_of[as_size(call.inputs[0])];
      result_.alias_of.back() = call.inputs[0] = input;
      result_.alias_offsets.back() = *offset;
      call.function = part_of_input(*offset, size_bytes(type_of(compute.result).dtype));
      add_call(std::move(call));
      return;
    }
    if (is_alias(node.op)) {
      // The alias is of the value that had the bytes first, not of the operand. The step that made
      // the operand may have copied the bytes. Then there would be two places to write to, and one
      // of them may be an input's.
      call.inputs[0] = result_.alias_of[as_size(call.inputs[0])];
      result_.alias_of.back() = call.inputs[0];
      result_.in_place.back().push_back({call.inputs[0], call.outputs[0]});
    }
    if (is_update(node.op)) result_.in_place.back().push_back({call.inputs[0], call.outputs[0]});
    call.function = function_of(node, compute);
    add_call(std::move(call));
  }

  /// The offset of the call's result in an input's shards: for a slice whose bytes are one range of
  /// each shard, and for an alias of such a slice. Only inputs keep their memory anyway.
  std::optional<std::size_t> place_in_input(const Node& node, const Program::Call& call) const {
    if (node.op != Op::slice && !is_alias(node.op)) return {};
    const ValueId operand = call.inputs[0], whole = result_.alias_of[as_size(operand)];
    if (as_size(whole) >= result_.inputs.size()) return {};  // inputs have the first numbers
    const Program::Value& from = result_.program.value(operand);
    const std::size_t offset = result_.alias_offsets[as_size(operand)];
    if (node.op == Op::slice) {
      const auto begin = range_begin(from, result_.program.value(call.outputs[0]), node);
      return begin ? std::optional(offset + *begin) : std::nullopt;
    }
    const bool is_part =
        num_elements(from.shape) != num_elements(result_.program.value(whole).shape);
    return is_part ? std::optional(offset) : std::nullopt;
  }

  /// The offset of a slice in each shard, in bytes, if it is the same in all shards and the slice
  /// is one range of them.
  std::optional<std::size_t> range_begin(const Program::Value& from, const Program::Value& to,
                                         const Node& node) const {
    const auto& slice = std::get<SliceAttributes>(node.attributes);
    const std::int64_t last = mesh_.size() - 1;
    const Shape whole = from.layout.largest(from.shape), part = to.layout.largest(to.shape);
    if (from.layout.has_windows() || to.layout.has_windows() || from.dtype != to.dtype ||
        from.box(last).shape() != whole || to.box(last).shape() != part) {
      return {};
    }
    const Dims strides = row_major_strides(whole);
    std::int64_t begin = 0;
    bool is_range = true;
    for (std::size_t dim = 0; dim < whole.size(); ++dim) {
      const bool is_whole = from.shape[dim] == to.shape[dim];
      if (is_whole ? whole[dim] != part[dim]
                   : whole[dim] != from.shape[dim] || part[dim] != to.shape[dim]) {
        return {};
      }
      // Elements before this dim lie apart, so there may be only one.
      if (!is_whole) {
        is_range = is_range && slice.stride[dim] == 1;
        for (std::size_t before = 0; before < dim; ++before)
          is_range = is_range && part[before] == 1;
        begin += slice.begin[dim] * strides[dim];
      }
    }
    if (!is_range) return {};
    return as_size(begin) * size_bytes(from.dtype);
  }

  /// Copies nothing if the result already is at its place in the input.
  static LocalFunction part_of_input(std::size_t offset, std::size_t element_bytes) {
    return [offset, element_bytes](const LocalContext& context) {
      const std::byte* const from = context.inputs[0].data + offset;
      const BoxView& to = context.outputs[0];
      if (to.data != from) std::memcpy(to.data, from, num_bytes(to.box.shape(), element_bytes));
    };
  }

  LocalFunction function_of(const Node& node, const Compute& compute) const {
    const TensorType made = type_of(compute.result);
    std::vector<TensorType> have, needed;
    for (const PartValue operand : compute.operands) {
      have.push_back(type_of(operand));
      needed.push_back(have.back());
      if (!(made == node.type) && have.back().dtype == node.type.dtype) {
        needed.back().dtype = made.dtype;
      }
    }
    return [graph = graph_, &node, made, have = std::move(have),
            needed = std::move(needed)](const LocalContext& context) {
      std::vector<ConstShardView> operands;
      std::deque<detail::Widened> wide;
      operands.reserve(have.size());
      for (std::size_t i = 0; i < have.size(); ++i) {
        operands.push_back({context.inputs[i].data, have[i].dtype, context.inputs[i].box});
        if (have[i] == needed[i]) continue;
        operands.back() = wide.emplace_back(operands.back()).view();
      }
      const ShardView out{context.outputs[0].data, made.dtype, context.outputs[0].box};
      row(node.op).run({node.op, made, node.attributes, needed, operands, out});
    };
  }

  void add(const PartitionedGraph::Loop& loop) {
    const Node& node = graph_->node(loop.node);
    const detail::BodyParts parts(node);
    Program::Loop step;
    step.name = label(loop.node);
    for (const PartValue operand : loop.operands) step.inputs.push_back(id(operand));
    if (loop.otherwise != nullptr) {
      step.predicate = step.inputs.front();
      step.inputs.erase(step.inputs.begin());
    }
    for (std::size_t r = 0; r < loop.results.size(); ++r) {
      step.outputs.push_back(add_value(
          loop.results[r], fmt::format("result {} of {}", r, step.name), MemoryKind::activation));
    }
    const auto lowered = [&](const PartitionedBody& body) {
      return std::make_shared<const LoweredBody>(
          lower_body(parts, body, mesh_, nan_check_, move_plans_));
    };
    LoweredBodies bodies{lowered(*loop.body), nullptr};
    std::size_t bytes = bodies.body->region_bytes;
    step.body = bodies.body->body;
    if (loop.otherwise != nullptr) {
      bodies.otherwise = lowered(*loop.otherwise);
      bytes = std::max(bytes, bodies.otherwise->region_bytes);
      step.otherwise = bodies.otherwise->body;
    }
    step.memory = add_memory(bytes, step.name, loop.node);
    result_.bodies.emplace(result_.program.steps().size(), std::move(bodies));
    result_.program.add_step(std::move(step));
  }

  /// Adds a value that serves as memory for those of a body.
  ValueId add_memory(std::size_t bytes, const std::string& of, NodeId node) {
    if (bytes == 0) return -1;
    const Shape shape{static_cast<std::int64_t>(bytes)};
    result_.alias_of.push_back(result_.program.add_value(
        {DType::u8, shape, layout(Cut(1), shape), "values of " + of, MemoryKind::activation}));
    result_.alias_offsets.push_back(0);
    result_.nodes.push_back(node);
    return result_.alias_of.back();
  }

  void add_moves(const std::vector<std::size_t>& steps) {
    Program::Move moves;
    for (const std::size_t step : steps) {
      const auto& move = std::get<PartitionedGraph::Move>(partitioned_.steps[step]);
      const PartitionedGraph::Value& from = partitioned_.values[as_size(move.from)];
      const TensorType type = type_of(move.from);
      std::string one = fmt::format("{} of {}", name(move.kind), label(from.node));
      const ValueId to = add_value(move.to, one, MemoryKind::collective);
      moves.parts.push_back({id(move.from), to, {}});
      // A device reads no element of others except those that it combines, in the same place.
      if (move.kind == CollectiveKind::all_reduce &&
          from.cut == partitioned_.values[as_size(move.to)].cut) {
        result_.in_place.back().push_back({moves.parts.back().from, to});
      }
      if (move_plans_ == MovePlans::made) {
        moves.parts.back().plan = plan(from, partitioned_.values[as_size(move.to)], type, move);
      }
      moves.name = std::move(one);
    }
    if (steps.size() > 1) moves.name += fmt::format(" and {} more", steps.size() - 1);
    result_.program.add_step(std::move(moves));
  }

  const MovePlan& plan(const PartitionedGraph::Value& from, const PartitionedGraph::Value& to,
                       const TensorType& type, const PartitionedGraph::Move& move) {
    const bool combines =
        move.kind == CollectiveKind::all_reduce || move.kind == CollectiveKind::reduce_scatter;
    for (const KnownPlan& known : plans_) {
      if (known.from == from.cut && known.to == to.cut && known.type == type &&
          known.axes == move.axes && known.combines == combines &&
          known.reduction == to.reduction) {
        return known.plan;
      }
    }
    const Layout a = layout(from.cut, type.shape), b = layout(to.cut, type.shape);
    MovePlan made;
    if (combines) {
      // The group: devices that hold parts of the sum, and those that share the dims that change.
      AxisSet group = move.axes;
      for (std::size_t dim = 0; dim < from.cut.size(); ++dim) {
        if (!(from.cut[dim] == to.cut[dim])) group |= from.cut[dim].set();
      }
      std::vector<std::size_t> axes;
      for (std::size_t axis = 0; axis < mesh_.rank(); ++axis) {
        if (group >> axis & 1) axes.push_back(axis);
      }
      made = plan_move(a.sharding(), b.sharding(), type.shape, type.dtype, axes, to.reduction);
    } else {
      made = plan_redistribution(a, b, type.shape, type.dtype);
    }
    plans_.push_back({from.cut, to.cut, type, move.axes, combines, to.reduction, std::move(made)});
    return plans_.back().plan;
  }

  // ---- Elementwise kernels.

  /// Finds the results of kernels that are read outside of them.
  void find_kernel_results(const std::vector<FusedStep>& steps) {
    is_read_.assign(partitioned_.values.size(), false);
    std::vector<std::size_t> kernel_of(partitioned_.values.size(), SIZE_MAX);
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (!steps[i].is_elementwise) continue;
      for (const std::size_t step : steps[i].steps) {
        kernel_of[as_size(std::get<Compute>(partitioned_.steps[step]).result)] = i;
      }
    }
    for (std::size_t i = 0; i < steps.size(); ++i) {
      for (const std::size_t step : steps[i].steps) {
        const auto* const compute = std::get_if<Compute>(&partitioned_.steps[step]);
        if (compute == nullptr) {
          visit_step(
              partitioned_.steps[step], [&](PartValue read) { is_read_[as_size(read)] = true; },
              [](PartValue) {});
          continue;
        }
        for (const PartValue operand : compute->operands) {
          const PartValue source = steps[i].is_elementwise ? input_of(operand).value : operand;
          if (source >= 0 &&
              (!steps[i].is_elementwise || kernel_of[as_size(source)] != i || source != operand)) {
            is_read_[as_size(source)] = true;
          }
        }
      }
    }
    for (const PartValue output : partitioned_.outputs) is_read_[as_size(output)] = true;
  }

  /// The value that a kernel reads for an operand: -1 for a constant.
  KernelInput input_of(PartValue operand) const {
    const Compute* const maker = maker_[as_size(operand)];
    if (maker == nullptr) return {operand};
    const Node& node = graph_->node(maker->node);
    if (node.op == Op::constant) return {-1};
    if (node.op != Op::broadcast) return {operand};
    const Compute* const inner = maker_[as_size(maker->operands[0])];
    if (inner != nullptr && graph_->node(inner->node).op == Op::constant) return {-1};
    return {maker->operands[0], &node};
  }

  Scalar constant_of(PartValue operand) const {
    const Compute* maker = maker_[as_size(operand)];
    if (graph_->node(maker->node).op == Op::broadcast) maker = maker_[as_size(maker->operands[0])];
    return std::get<NumberAttributes>(graph_->node(maker->node).attributes).number;
  }

  /// A kernel that is being made.
  struct KernelParts {
    std::vector<const Compute*> members;
    std::vector<KernelInput> inputs;
    std::vector<ElementwiseInput> types;  ///< of the inputs
    std::vector<ElementwiseInstruction> instructions;
    std::map<PartValue, std::int32_t>
        numbers;  ///< of the members' results, -1 before they are there
    std::map<std::tuple<DType, DType, std::uint64_t>, std::int32_t>
        constants;  ///< instructions, by dtype of the operand, and of the number with its bits

    std::int32_t add(ElementwiseInstruction instruction) {
      instructions.push_back(std::move(instruction));
      return static_cast<std::int32_t>(inputs.size() + instructions.size()) - 1;
    }
    bool reads_member(const KernelInput& input) const {
      return input.broadcast == nullptr && numbers.count(input.value) > 0;
    }
  };

  void add_kernel(const FusedStep& fused) {
    KernelParts parts;
    for (const std::size_t step : fused.steps) {
      parts.members.push_back(&std::get<Compute>(partitioned_.steps[step]));
      parts.numbers.emplace(parts.members.back()->result, -1);
    }
    for (const Compute* const member : parts.members) {
      for (const PartValue operand : member->operands) {
        const KernelInput input = input_of(operand);
        if (input.value < 0 || parts.reads_member(input)) continue;
        if (std::find(parts.inputs.begin(), parts.inputs.end(), input) != parts.inputs.end()) {
          continue;
        }
        parts.inputs.push_back(input);
        parts.types.push_back({type_of(input.value).dtype});
      }
    }
    for (const Compute* const member : parts.members) {
      const Node& node = graph_->node(member->node);
      const DType made = type_of(member->result).dtype;
      ElementwiseInstruction instruction{
          member->only_converts ? Op::convert : node.op, made, {}, 0};
      for (const PartValue operand : member->operands) {
        std::int32_t number = operand_number(operand, parts);
        const bool widens = made != node.type.dtype && !member->only_converts &&
                            type_of(operand).dtype == node.type.dtype;
        if (widens) number = parts.add({Op::convert, made, {number}, 0});
        instruction.operands.push_back(number);
      }
      parts.numbers[member->result] = parts.add(std::move(instruction));
    }
    Program::Call call{kernel_label(parts.members), {}, {}, {}};
    for (const KernelInput& input : parts.inputs) call.inputs.push_back(id(input.value));
    std::vector<std::int32_t> outputs;
    for (const Compute* const member : parts.members) {
      if (!is_read_[as_size(member->result)]) continue;
      outputs.push_back(parts.numbers[member->result]);
      call.outputs.push_back(
          add_value(member->result, label(member->node), MemoryKind::activation));
      note_in_place(parts, call, size_bytes(type_of(member->result).dtype));
    }
    call.function = kernel_function(std::move(parts), std::move(outputs));
    add_call(std::move(call));
  }

  /// The number of an instruction's operand; a constant is an instruction by itself.
  std::int32_t operand_number(PartValue operand, KernelParts& parts) const {
    const KernelInput input = input_of(operand);
    if (input.value < 0) {
      const DType dtype = type_of(operand).dtype;
      const Scalar value = constant_of(operand);
      const auto [at, is_new] =
          parts.constants.emplace(std::tuple(dtype, value.dtype(), value.bits()), -1);
      if (is_new) at->second = parts.add({Op::constant, dtype, {}, value});
      return at->second;
    }
    if (parts.reads_member(input)) return parts.numbers[input.value];
    const auto at = std::find(parts.inputs.begin(), parts.inputs.end(), input);
    return static_cast<std::int32_t>(at - parts.inputs.begin());
  }

  /// Notes the operands that the call's last output may overwrite.
  void note_in_place(const KernelParts& parts, const Program::Call& call, std::size_t bytes) {
    for (std::size_t i = 0; i < parts.inputs.size(); ++i) {
      if (parts.inputs[i].broadcast != nullptr || size_bytes(parts.types[i].dtype) != bytes) {
        continue;
      }
      result_.in_place.back().push_back({call.inputs[i], call.outputs.back()});
    }
  }

  LocalFunction kernel_function(KernelParts parts, std::vector<std::int32_t> outputs) const {
    std::vector<const Node*> broadcasts;
    std::vector<Shape> wholes;
    broadcasts.reserve(parts.inputs.size());
    wholes.reserve(parts.inputs.size());
    for (const KernelInput& input : parts.inputs) {
      broadcasts.push_back(input.broadcast);
      wholes.push_back(type_of(input.value).shape);
    }
    return [graph = graph_,
            kernel = ElementwiseKernel(std::move(parts.types), std::move(parts.instructions),
                                       std::move(outputs)),
            broadcasts = std::move(broadcasts),
            wholes = std::move(wholes)](const LocalContext& context) {
      const Shape shape = context.outputs[0].box.shape();
      std::vector<ElementwiseKernel::Operand> operands;
      operands.reserve(broadcasts.size());
      for (std::size_t i = 0; i < broadcasts.size(); ++i) {
        operands.push_back(
            {context.inputs[i].data,
             strides_of(context.inputs[i].box.shape(), wholes[i], broadcasts[i], shape.size())});
      }
      std::vector<std::byte*> results;
      results.reserve(context.outputs.size());
      for (const BoxView& output : context.outputs) results.push_back(output.data);
      kernel.run(shape, operands, results);
    };
  }

  std::string kernel_label(const std::vector<const Compute*>& members) const {
    if (members.size() == 1) return label(members[0]->node);
    return fmt::format("{} and {} more", label(members.back()->node), members.size() - 1);
  }

  struct KnownLayout {
    Cut cut;
    Shape shape;  ///< decides only if the cut has tiles or windows
    Layout layout;
  };

  struct KnownPlan {
    Cut from, to;
    TensorType type;
    AxisSet axes;
    bool combines;
    Reduction reduction;
    MovePlan plan;
  };

  std::shared_ptr<const Graph> graph_;
  const Mesh& mesh_;
  const PartitionedGraph& partitioned_;
  const NanCheck nan_check_;
  const MovePlans move_plans_;
  LoweredProgram result_;
  std::vector<ValueId> ids_;            ///< by value of the partitioned graph
  std::vector<const Compute*> maker_;   // likewise
  std::vector<bool> is_read_;           // likewise
  std::vector<std::int64_t> input_of_;  ///< by node of the graph: its place in Graph::inputs, or -1
  std::vector<KnownLayout> layouts_;
  std::vector<KnownPlan> plans_;
};

}  // namespace

LoweredProgram lower(std::shared_ptr<const Graph> graph, const Mesh& mesh,
                     const PartitionedGraph& partitioned, const std::vector<FusedStep>& steps,
                     NanCheck nan_check, MovePlans move_plans) {
  return Lowering(std::move(graph), mesh, partitioned, nan_check, move_plans).run(steps);
}

}  // namespace shardwise
