#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/runtime/ops/detail/row.h"
#include "shardwise/runtime/spmd/detail/cut.h"

namespace shardwise {

/// One of the tensors that an op reads, for the choice of its factors' axes.
struct OperandState {
  NodeId node;
  const TensorType* type;
  const DimFactors* dims;

  /// The cuts that are available; the first is the one that its op made.
  std::vector<const Cut*> cuts;
  AxisSet partial = 0;   ///< of the first: it is still parts of a sum
  bool is_wide = false;  ///< the parts are wide
};

struct ChoiceProblem {
  const FactorRule& rule;
  const TensorType& type;  ///< of the result
  std::span<const OperandState> operands;
  const Cut& wanted;        ///< how the result should be cut
  bool exact = false;       ///< it must be: a mark, or an output
  bool multiplies = false;  ///< each combination of the factors is an operation
  AxisSet carried = 0;      ///< operands stay parts of a sum over these; not to be used
  double share = 1;         ///< share of the cost of combining the result, which others share
};

/// The axes that cut each factor of an op, with the bytes and the work that this costs a device.
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

/// The cut of a result once it is combined, as far as its axes determine it. Before, it is parts of
/// a sum over `partial`, cut as `natural`.
Cut combined_cut(const Cut& natural, AxisSet partial, const Cut& with_windows);

}  // namespace shardwise
