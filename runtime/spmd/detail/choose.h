#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/runtime/spmd/detail/cut.h"

namespace shardwise {

/// One of the tensors that an op reads, as the choice of its factors' axes sees it.
struct OperandState {
  NodeId node;
  const TensorType* type;
  const DimFactors* dims;

  /// How it can be had; the first is the one that the op made.
  std::vector<const Cut*> cuts;
  AxisSet partial = 0;   ///< of the first: it is still parts of a sum
  bool is_wide = false;  ///< these are
};

struct ChoiceProblem {
  const FactorRule& rule;
  const TensorType& type;  ///< of the result
  std::span<const OperandState> operands;
  const Cut& wanted;        ///< how the result should be cut
  bool exact = false;       ///< it will be: a mark, or an output
  bool multiplies = false;  ///< each combination of the factors is an operation
  AxisSet carried = 0;      ///< operands stay parts of a sum over these; not to be used
  double share = 1;         ///< of what a combination of the result costs: others share it
};

/// Which axes cut which factor of an op, with the bytes and the work that this costs a device.
struct FactorChoice {
  FactorCut factors;
  Cut result;
  AxisSet partial = 0;  ///< reduction factors are cut over these
  double bytes = 0;
  double operations = 0;
};

/// The cheapest of all ways to give each axis to one factor or to none. The axes are those that cut
/// an operand or the wanted result. Notes all ways, cheapest first, if `notes` is given.
FactorChoice choose(const ChoiceProblem& problem, const Mesh& mesh, std::string* notes);

/// How a result is cut once it is combined, if this is wanted, as far as its axes say. It is parts
/// of a sum over `partial` before, cut as `natural`.
Cut combined_cut(const Cut& natural, AxisSet partial, const Cut& with_windows);

}  // namespace shardwise
