#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/checkpoint/detail/group/save_report.h"
#include "shardwise/checkpoint/detail/manifest.h"

namespace shardwise::detail {

/// Of a text that all processes print alike.
Hash128 hash_of(std::string_view text);

/// Which tensors the processes of a save have: all the same, or, as pipeline stages, different
/// ones, of which one process per different list tells what it has. Rank 0 merges them.
/// Thread-compatible.
class TensorViews {
 public:
  /// One report per rank.
  explicit TensorViews(std::span<const SaveReport> reports);

  /// For each list that is not rank 0's, the first rank that has it; ascending.
  std::vector<int> others() const;

  /// Adds the tensors that these ranks' lists have to the manifest, which has rank 0's. Throws
  /// invalid_argument where two ranks say different things of a tensor, or who writes what.
  void merge(std::span<const int> ranks, std::span<const Bytes> lists, Manifest& manifest);

  /// Throws invalid_argument where not every element of every tensor was written, naming a rank
  /// that has not written what its devices hold.
  void check_complete(const Manifest& manifest, std::span<const SaveReport> reports,
                      const SaveOptions& options) const;

 private:
  std::vector<Hash128> list_of_rank_;
  std::map<std::string, std::vector<Hash128>, std::less<>> lists_with_;  // by tensor; if merged
};

}  // namespace shardwise::detail
