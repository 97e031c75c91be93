#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "shardwise/runtime/graph/graph.h"
#include "shardwise/runtime/kernels/detail/shard_view.h"
#include "shardwise/runtime/ops/build.h"
#include "shardwise/runtime/ops/detail/factors.h"
#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise {

/// The facts for a new node: its operands' types, its attributes, and the parts of the result type
/// that those do not determine (the shape of a reshape, the dtype of a convert).
struct TypeCall {
  Op op;
  std::span<const TensorType> operands;
  const Attributes& attributes;
  const TensorType& wanted;

  template <class A>
  const A& get() const {
    return std::get<A>(attributes);
  }
};

/// The start of a gradient: `cotangent` is the gradient with respect to the result.
struct GradientCall {
  std::span<const NodeRef> operands;
  const NodeRef& result;
  const NodeRef& cotangent;
  const Attributes& attributes;
  const std::vector<bool>& wanted;  ///< by operand

  template <class A>
  const A& get() const {
    return std::get<A>(attributes);
  }
};

/// By operand; absent if it has no gradient, or if none is wanted.
using Gradients = std::vector<std::optional<NodeRef>>;

/// One device's part of a node.
struct KernelCall {
  Op op;
  const TensorType& type;
  const Attributes& attributes;
  std::span<const TensorType> operand_types;
  std::span<const ConstShardView> operands;
  const ShardView& out;

  template <class A>
  const A& get() const {
    return std::get<A>(attributes);
  }
};

/// The operands of a node that may be parts of a sum, so that the result is parts of the sum: no
/// operand; one, if the others are whole sums; or all. Parts pass through an op if it is exact on
/// whole numbers of any dtype: then parts may be summed before it or after. A product is exact, a
/// quotient is not. (Both are rounded on numbers that are not whole, as sums are.)
enum class Linear { no, in_one, in_all };

/// Further facts about an op, in addition to its row's functions.
struct OpTraits {
  /// Computed element by element, so that chains of such nodes can be one kernel.
  bool is_elementwise = false;

  /// Gives the bytes of its operand unchanged.
  bool is_alias = false;

  /// Gives elements of any dtype unchanged, only at other places. Not true of `pad`, which converts
  /// a number, or of ops that add up zeros if their operands are cut.
  bool only_moves = false;

  /// Puts elements at other places, or needs no operands: recomputing it costs almost nothing.
  bool is_remade = false;

  /// Each combination of the factors is a multiplication and an addition.
  bool is_product = false;

  Linear linear = Linear::no;
};

/// The definition of an op: everything that the system knows about it. The four functions are
/// mandatory, since the constructor takes them by reference.
///
/// Immutable, thread-safe.
class OpRow {
 public:
  using TypeRule = TensorType(const TypeCall&);
  using Rule = FactorRule(const Node&, std::span<const TensorType> operands);
  using Gradient = Gradients(const GradientCall&);
  using Kernel = void(const KernelCall&);

  OpRow(Op op, TypeRule& type, Rule& factors, Gradient& gradient, Kernel& kernel,
        OpTraits traits = {})
      : OpRow(op, Takes<NoAttributes>(), type, factors, gradient, kernel, traits) {}

  /// For an op that takes other attributes: `Takes<SliceAttributes>()`.
  template <class A>
  struct Takes {};
  template <class A>
  OpRow(Op op, Takes<A>, TypeRule& type, Rule& factors, Gradient& gradient, Kernel& kernel,
        OpTraits traits = {})
      : op_(op),
        attributes_(A{}),
        type_(&type),
        factors_(&factors),
        gradient_(&gradient),
        kernel_(&kernel),
        traits_(traits) {}

  Op op() const { return op_; }
  const OpTraits& traits() const { return traits_; }

  /// True if the attributes are of the struct that the op takes.
  bool takes(const Attributes& attributes) const {
    return attributes.index() == attributes_.index();
  }

  /// An empty struct of that kind.
  const Attributes& empty_attributes() const { return attributes_; }

  /// The result's type. Throws invalid_argument or unsupported with found and needed; append() adds
  /// op and place.
  TensorType type(const TypeCall& call) const { return type_(call); }

  FactorRule factors(const Node& node, std::span<const TensorType> operands) const {
    return factors_(node, operands);
  }
  Gradients gradient(const GradientCall& call) const { return gradient_(call); }

  /// Fills call.out from operands cut like the factors. Runs on the calling thread only.
  void run(const KernelCall& call) const { kernel_(call); }

 private:
  Op op_;
  Attributes attributes_;
  TypeRule* type_;
  Rule* factors_;
  Gradient* gradient_;
  Kernel* kernel_;
  OpTraits traits_;
};

/// The table of all ops.
const OpRow& row(Op op);

/// The types of a node's operands.
std::vector<TensorType> operand_types(const Graph& graph, const Node& node);

/// The node's factors.
FactorRule factor_rule(const Graph& graph, const Node& node);

inline bool is_elementwise(Op op) { return row(op).traits().is_elementwise; }
inline bool is_alias(Op op) { return row(op).traits().is_alias; }

/// True if the result has operand 0's elements at their places, but for those that an update
/// replaces: it may be written over the operand.
inline bool is_update(Op op) { return op == Op::dynamic_update_slice; }

/// True if each element depends only on those at its place, or is an update's; `identity` exists
/// for a mark.
inline bool keeps_places(Op op) {
  return is_elementwise(op) || op == Op::identity || is_update(op);
}

}  // namespace shardwise
