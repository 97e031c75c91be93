#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/kernels/detail/shard_view.h"
#include "shardwise/runtime/ops/build.h"
#include "shardwise/runtime/ops/detail/factors.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise {

/// What an op is asked for when a node is appended: its operands' types, its attributes, and the
/// result type as far as those do not give it (the shape of a reshape, the dtype of a convert).
struct TypeCall {
  Op op;
  std::span<const TensorType> operands;
  const Attributes& attributes;
  const TensorType& wanted;
};

/// What a gradient starts from: `cotangent` is the gradient with respect to the result.
struct GradientCall {
  std::span<const NodeRef> operands;
  const NodeRef& result;
  const NodeRef& cotangent;
  const Attributes& attributes;
  const std::vector<bool>& wanted;  ///< by operand
};

/// By operand; nothing if it has none, or if it is not wanted.
using Gradients = std::vector<std::optional<NodeRef>>;

/// One device's part of a node.
struct KernelCall {
  Op op;
  const TensorType& type;
  const Attributes& attributes;
  std::span<const TensorType> operand_types;
  std::span<const ConstShardView> operands;
  const ShardView& out;
};

/// What an op is: there is none without all four, as the constructor takes functions by reference.
/// A few facts stand elsewhere: which ops are elementwise or only another view of their operand
/// (below), take any dtype (build.cc), pass on parts of a sum (spmd/detail/partition.cc), or are
/// counted as multiplications (spmd/executable.cc).
///
/// Immutable, thread-safe.
class OpRow {
 public:
  using TypeRule = TensorType(const TypeCall&);
  using Rule = FactorRule(const Node&, std::span<const TensorType> operands);
  using Gradient = Gradients(const GradientCall&);
  using Kernel = void(const KernelCall&);

  OpRow(Op op, TypeRule& type, Rule& factors, Gradient& gradient, Kernel& kernel)
      : op_(op), type_(&type), factors_(&factors), gradient_(&gradient), kernel_(&kernel) {}

  Op op() const { return op_; }

  /// The result's type. Throws invalid_argument or unsupported with what was found and what was
  /// needed; append() adds op and place.
  TensorType type(const TypeCall& call) const { return type_(call); }

  FactorRule factors(const Node& node, std::span<const TensorType> operands) const {
    return factors_(node, operands);
  }
  Gradients gradient(const GradientCall& call) const { return gradient_(call); }

  /// Fills call.out from operands cut as the factors say. On the calling thread alone.
  void run(const KernelCall& call) const { kernel_(call); }

 private:
  Op op_;
  TypeRule* type_;
  Rule* factors_;
  Gradient* gradient_;
  Kernel* kernel_;
};

/// The table of all ops.
const OpRow& row(Op op);

/// The types of a node's operands.
std::vector<TensorType> operand_types(const Graph& graph, const Node& node);

/// The node's factors.
FactorRule factor_rule(const Graph& graph, const Node& node);

/// Computed element by element, so that chains of such nodes can be one kernel.
bool is_elementwise(Op op);

/// Gives the bytes of its operand as they are.
bool is_alias(Op op);

}  // namespace shardwise
