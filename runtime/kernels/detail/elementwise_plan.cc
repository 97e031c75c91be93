#include "shardwise/runtime/kernels/detail/elementwise_plan.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <optional>

#include "shardwise/runtime/kernels/detail/element_type.h"
#include "shardwise/runtime/kernels/detail/strided_copy.h"

namespace shardwise::detail {
namespace {

using TileNodeId = std::size_t;
constexpr std::size_t kNoTileOutput = SIZE_MAX;

enum class TileNodeKind { input, constant, computed };

/// A step before places are given out: an input, a constant, or a call.
struct TileNode {
  TileNodeKind kind;
  std::size_t index = 0;  // among the inputs or constants
  TileFunction function = nullptr;
  DType from = DType::u8, to = DType::u8;
  std::vector<TileNodeId> sources = {};
  std::size_t element_bytes;
  std::size_t output = kNoTileOutput;
};

/// An operand of the kernel's. f16 and bf16 are stored in two bytes and computed as f32s that two
/// bytes can hold; for all others both forms are one.
struct TileValue {
  DType dtype;
  std::optional<TileNodeId> stored = {};
  std::optional<TileNodeId> computed = {};
  std::optional<TileNodeId> unrounded = {};  // before rounding; narrowing it gives the same
};

/// True if the operands' half type can hold an op's f32 result exactly.
bool keeps_half(Op op) {
  switch (op) {
    case Op::neg:
    case Op::abs:
    case Op::sign:
    case Op::floor:
    case Op::ceil:
    case Op::round:
    case Op::max:
    case Op::min:
    case Op::select:
      return true;
    default:
      return false;
  }
}

/// The nodes of a kernel, each after those that it reads.
class ElementwiseLowering {
 public:
  ElementwiseLowering(std::span<const ElementwiseInput> inputs,
                      std::span<const ElementwiseInstruction> instructions,
                      std::span<const std::int32_t> outputs, Writing writing)
      : outputs_(outputs) {
    for (const ElementwiseInput& input : inputs) add_input(input.dtype);
    for (const ElementwiseInstruction& instruction : instructions) {
      values_.push_back(lower(instruction));
      if (writing == Writing::directly) write_outputs_of(values_.size() - 1);
    }
    if (writing == Writing::directly) {
      for (std::size_t input = 0; input < inputs.size(); ++input) write_outputs_of(input);
    } else {
      write_all_outputs();
    }
  }

  std::vector<TileNode> nodes;
  std::vector<Block> constants;

 private:
  TileNodeId add(TileNode node) {
    nodes.push_back(std::move(node));
    return nodes.size() - 1;
  }

  TileNodeId call(TileFunction function, std::vector<TileNodeId> sources, DType result) {
    assert(function != nullptr);
    return add({.kind = TileNodeKind::computed,
                .function = function,
                .sources = std::move(sources),
                .element_bytes = size_bytes(result)});
  }

  TileNodeId convert(TileNodeId source, DType from, DType to) {
    return add({.kind = TileNodeKind::computed,
                .function = convert_function(from, to),
                .from = from,
                .to = to,
                .sources = {source},
                .element_bytes = size_bytes(to)});
  }

  TileNodeId copy(TileNodeId source) {
    const std::size_t bytes = nodes[source].element_bytes;
    return add({.kind = TileNodeKind::computed,
                .function = copy_function(bytes),
                .sources = {source},
                .element_bytes = bytes});
  }

  void add_input(DType dtype) {
    const TileNodeId node = add(
        {.kind = TileNodeKind::input, .index = values_.size(), .element_bytes = size_bytes(dtype)});
    values_.push_back(of_stored(dtype, node));
  }

  TileValue of_stored(DType dtype, TileNodeId node) const {
    TileValue value{.dtype = dtype, .stored = node};
    if (!is_half(dtype)) value.computed = node;
    return value;
  }

  TileValue of_computed(DType dtype, TileNodeId node) const {
    TileValue value{.dtype = dtype, .computed = node};
    if (!is_half(dtype)) value.stored = node;
    return value;
  }

  /// f32 that may be more exact than f16 or bf16.
  TileValue of_unrounded(DType dtype, TileNodeId node) {
    if (!is_half(dtype)) return of_computed(dtype, node);
    const TileNodeId rounded = call(rounding_function(dtype), {node}, DType::f32);
    return {.dtype = dtype, .computed = rounded, .unrounded = node};
  }

  TileNodeId computed(TileValue& value) {
    if (!value.computed) {
      value.computed = convert(*value.stored, value.dtype, compute_dtype(value.dtype));
    }
    return *value.computed;
  }

  TileNodeId computed(std::int32_t operand) { return computed(values_[as_size(operand)]); }

  TileValue lower(const ElementwiseInstruction& instruction) {
    const DType dtype = instruction.dtype;
    if (instruction.op == Op::constant) return constant(dtype, instruction.number);
    TileValue& first = values_[as_size(instruction.operands[0])];
    switch (instruction.op) {
      case Op::identity:
      case Op::stop_gradient:
      case Op::optimization_barrier:
        return first;
      case Op::convert:
        return converted(first, dtype);
      default:
        break;
    }
    std::vector<TileNodeId> sources;
    for (const std::int32_t operand : instruction.operands) sources.push_back(computed(operand));
    DType of = values_[as_size(instruction.operands.back())].dtype;
    if (instruction.op == Op::pow && of != dtype) {  // an integer exponent
      TileValue exponent = converted(values_[as_size(instruction.operands[1])], dtype);
      sources[1] = computed(exponent);
      of = dtype;
    }
    const DType result = compute_dtype(dtype);
    const TileNodeId node =
        call(tile_function(instruction.op, compute_dtype(of)), std::move(sources), result);
    return keeps_half(instruction.op) ? of_computed(dtype, node) : of_unrounded(dtype, node);
  }

  TileValue constant(DType dtype, const Scalar& number) {
    std::array<std::byte, sizeof(double)> element{}, source{};
    number.write(dtype, element.data());
    const DType type = compute_dtype(dtype);
    if (type != dtype) {
      source = element;
      shardwise::convert(dtype, source.data(), type, element.data(), 1);
    }
    Block block;
    fill_elements(element.data(), size_bytes(type), block.bytes.data(),
                  kBlockBytes / size_bytes(type));
    constants.push_back(block);
    return of_computed(dtype, add({.kind = TileNodeKind::constant,
                                   .index = constants.size() - 1,
                                   .element_bytes = size_bytes(type)}));
  }

  TileValue converted(TileValue& from, DType to) {
    if (from.dtype == to) return from;
    const TileNodeId source = computed(from);
    const DType type = compute_dtype(from.dtype);
    if (type == compute_dtype(to)) {  // between the floating types up to f32
      return is_half(to) ? of_unrounded(to, source) : of_computed(to, source);
    }
    if (!is_half(to)) return of_computed(to, convert(source, type, to));
    // 0 and 1 are the same in all floating types; other numbers must be rounded once.
    if (type == DType::boolean) return of_computed(to, convert(source, type, DType::f32));
    return of_stored(to, convert(source, type, to));
  }

  /// The node of an output's elements in stored form, made if missing.
  TileNodeId stored(TileValue& value) {
    if (!value.stored) {
      const TileNodeId source = value.unrounded ? *value.unrounded : *value.computed;
      value.stored = convert(source, DType::f32, value.dtype);
    }
    return *value.stored;
  }

  void write_outputs_of(std::size_t operand) {
    for (std::size_t output = 0; output < outputs_.size(); ++output) {
      if (as_size(outputs_[output]) != operand) continue;
      TileNodeId node = stored(values_[operand]);
      if (nodes[node].kind != TileNodeKind::computed || nodes[node].output != kNoTileOutput) {
        node = copy(node);
      }
      nodes[node].output = output;
    }
  }

  void write_all_outputs() {
    std::vector<TileNodeId> sources;
    for (const std::int32_t operand : outputs_) {
      const TileNodeId node = stored(values_[as_size(operand)]);
      sources.push_back(nodes[node].kind == TileNodeKind::input ? copy(node) : node);
    }
    for (std::size_t output = 0; output < outputs_.size(); ++output) {
      nodes[copy(sources[output])].output = output;
    }
  }

  std::span<const std::int32_t> outputs_;
  std::vector<TileValue> values_;
};

/// For each node the last one that reads it; 0 if no node does.
std::vector<TileNodeId> last_readers(const std::vector<TileNode>& nodes) {
  std::vector<TileNodeId> last(nodes.size(), 0);
  for (TileNodeId node = nodes.size(); node-- > 0;) {
    if (last[node] == 0 && nodes[node].output == kNoTileOutput) continue;
    for (const TileNodeId source : nodes[node].sources) last[source] = std::max(last[source], node);
  }
  return last;
}

/// Gives the nodes their places: a scratch tile is free again after its last reader.
class ElementwisePlacement {
 public:
  ElementwisePlacement(const std::vector<TileNode>& nodes, std::size_t inputs,
                       std::size_t constants, std::size_t outputs)
      : nodes_(nodes),
        last_(last_readers(nodes)),
        targets_(nodes.size(), 0),
        first_target_(inputs + constants),
        constants_(inputs),
        outputs_(outputs) {
    for (TileNodeId node = 0; node < nodes.size(); ++node) {
      if (nodes[node].kind != TileNodeKind::computed) continue;
      if (last_[node] != 0 || nodes[node].output != kNoTileOutput) place(node);
    }
    find_clashes();
  }

  ElementwisePlan plan;

 private:
  std::size_t place_of(TileNodeId node) const {
    switch (nodes_[node].kind) {
      case TileNodeKind::input:
        return nodes_[node].index;
      case TileNodeKind::constant:
        return constants_ + nodes_[node].index;
      case TileNodeKind::computed:
        break;
    }
    return first_target_ + targets_[node];
  }

  bool dies_at(TileNodeId source, TileNodeId reader) const {
    return last_[source] == reader && nodes_[source].kind == TileNodeKind::computed &&
           nodes_[source].output == kNoTileOutput;
  }

  /// Frees the tiles of the sources that no later node reads. `of_its_width`: only sources of the
  /// node's width, which its function may overwrite while it reads them; else only the others.
  void free_sources(TileNodeId node, bool of_its_width) {
    for (const TileNodeId source : nodes_[node].sources) {
      const bool same = nodes_[source].element_bytes == nodes_[node].element_bytes &&
                        nodes_[node].function != nullptr;
      if (same != of_its_width || !dies_at(source, node)) continue;
      free_.push_back(targets_[source]);
      last_[source] = 0;  // a second operand is not freed again
    }
  }

  void place(TileNodeId node) {
    const TileNode& call = nodes_[node];
    ElementwiseStep step{
        .function = call.function, .from = call.from, .to = call.to, .sources = {}, .target = 0};
    for (std::size_t k = 0; k < call.sources.size(); ++k) {
      step.sources[k] = place_of(call.sources[k]);
    }
    free_sources(node, true);
    targets_[node] = call.output != kNoTileOutput ? call.output : scratch_tile();
    free_sources(node, false);
    step.target = targets_[node];
    plan.steps.push_back(step);
  }

  std::size_t scratch_tile() {
    if (free_.empty()) return outputs_ + plan.scratch_tiles++;
    const std::size_t tile = free_.back();
    free_.pop_back();
    return tile;
  }

  void find_clashes() {
    for (TileNodeId writer = 0; writer < nodes_.size(); ++writer) {
      const std::size_t output = nodes_[writer].output;
      if (output == kNoTileOutput) continue;
      for (TileNodeId input = 0; input < nodes_.size(); ++input) {
        if (nodes_[input].kind != TileNodeKind::input) continue;
        const bool later = last_[input] > writer;
        const bool in_one_step = last_[input] == writer && nodes_[writer].function == nullptr;
        if (later || in_one_step) plan.clashes.push_back({output, nodes_[input].index});
      }
    }
  }

  const std::vector<TileNode>& nodes_;
  std::vector<TileNodeId> last_;
  std::vector<std::size_t> targets_;
  std::vector<std::size_t> free_;
  std::size_t first_target_, constants_, outputs_;
};

}  // namespace

ElementwiseProgram compile_elementwise(std::span<const ElementwiseInput> inputs,
                                       std::span<const ElementwiseInstruction> instructions,
                                       std::span<const std::int32_t> outputs) {
  ElementwiseProgram program;
  for (const ElementwiseInput& input : inputs) {
    program.input_bytes.push_back(size_bytes(input.dtype));
  }
  for (const std::int32_t output : outputs) {
    const std::size_t operand = as_size(output);
    program.output_bytes.push_back(size_bytes(operand < inputs.size()
                                                  ? inputs[operand].dtype
                                                  : instructions[operand - inputs.size()].dtype));
  }
  for (const Writing writing : {Writing::directly, Writing::at_end}) {
    ElementwiseLowering lowering(inputs, instructions, outputs, writing);
    const ElementwisePlacement placement(lowering.nodes, inputs.size(), lowering.constants.size(),
                                         outputs.size());
    (writing == Writing::directly ? program.plan : program.at_end) = placement.plan;
    program.constants = std::move(lowering.constants);
    for (const TileNode& node : lowering.nodes) {
      program.widest_bytes = std::max(program.widest_bytes, node.element_bytes);
    }
  }
  return program;
}

}  // namespace shardwise::detail
