#pragma once

#include <cstdint>
#include <vector>

#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise {

/// A dim of the computation that operands and result share: rows of a matrix product, say.
struct Factor {
  enum class Kind : std::uint8_t {
    pass_through,      ///< cut in operands and result alike
    reduction,         ///< cut in operands; the results of the devices are then to be combined
    need_replication,  ///< must be whole
  };
  std::int64_t size;
  Kind kind = Kind::pass_through;
};

/// For each dim of a tensor its factors, major first; empty: nothing to cut (an extent of 1).
using DimFactors = std::vector<std::vector<std::int32_t>>;

/// How an op may be cut over devices. Factors are cut, and a dim is cut as its factors are.
/// (Source: Shardy's sharding rules.) A factor that only the result has costs nothing to cut.
struct FactorRule {
  std::vector<Factor> factors;
  std::vector<DimFactors> operands;
  DimFactors result;
  Reduction reduction = Reduction::sum;  ///< how results of cut reduction factors combine
};

}  // namespace shardwise
