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

/// What an op is asked for when a node is appended: its operands' types, its attributes, and the
/// result type as far as those do not give it (the shape of a reshape, the dtype of a convert).
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

/// What a gradient starts from: `cotangent` is the gradient with respect to the result.
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

  template <class A>
  const A& get() const {
    return std::get<A>(attributes);
  }
};

/// Whether operands of a node may be parts of a sum, so that the result is parts of the sum: none;
/// one, if the others are whole sums; or all. Parts pass through an op if it is exact on whole
/// numbers of any dtype: then it does not matter whether parts are summed before it or after. A
/// product is exact, a quotient is not. (Both are rounded on numbers that are not whole, as sums
/// are.)
enum class Linear { no, in_one, in_all };

/// What the system knows of an op beside what its row does.
struct OpTraits {
  /// Computed element by element, so that chains of such nodes can be one kernel.
  bool is_elementwise = false;

  /// Gives the bytes of its operand as they are.
  bool is_alias = false;

  /// Gives elements of any dtype as they are, wherever they go. `pad` does not: it converts a
  /// number. Nor do ops that add up zeros if their operands are cut.
  bool only_moves = false;

  /// Puts elements at other places, or needs no operands: it may be made again for next to nothing.
  bool is_remade = false;

  /// Each combination of the factors is a multiplication and an addition.
  bool is_product = false;

  Linear linear = Linear::no;
};

/// What an op is: all that the system knows of it. There is none without the four functions, as the
/// constructor takes them by reference.
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

  /// Of an op that takes other attributes: `Takes<SliceAttributes>()`.
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

  /// Whether these are of the struct that the op takes.
  bool takes(const Attributes& attributes) const {
    return attributes.index() == attributes_.index();
  }

  /// An empty struct of that kind.
  const Attributes& empty_attributes() const { return attributes_; }

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

/// Each element is made of those at its place; `identity` is there for a mark.
inline bool keeps_places(Op op) { return is_elementwise(op) || op == Op::identity; }

}  // namespace shardwise
