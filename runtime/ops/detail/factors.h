#pragma once

#include <cstdint>
#include <vector>

#include "shardwise/runtime/program/detail/layout.h"
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

/// The factors of a dim, major first; none: nothing to cut (an extent of 1).
struct FactorList {
  std::vector<std::int32_t> factors = {};

  /// For dims whose elements are not the factors': by factor, the elements that belong to the
  /// factor's part if it is the one that is cut. At most one is then cut. Windows follow the whole
  /// factor.
  std::vector<Window> windows = {};

  /// True if the whole dim belongs to each of its factors.
  bool needs_all = true;

  std::size_t size() const { return factors.size(); }
  bool empty() const { return factors.empty(); }
  std::int32_t operator[](std::size_t i) const { return factors[i]; }
  std::int32_t front() const { return factors.front(); }
  auto begin() const { return factors.begin(); }
  auto end() const { return factors.end(); }

  bool operator==(const FactorList&) const = default;
};

/// For each dim of a tensor its factors.
using DimFactors = std::vector<FactorList>;

/// How an op may be cut over devices. Factors are cut, and dims follow their factors. (Source:
/// Shardy's sharding rules.) A factor that only the result has costs nothing to cut.
struct FactorRule {
  std::vector<Factor> factors;
  std::vector<DimFactors> operands;
  DimFactors result;
  Reduction reduction = Reduction::sum;  ///< how results of cut reduction factors combine
};

}  // namespace shardwise
