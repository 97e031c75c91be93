#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "shardwise/checkpoint/detail/parity/parity_format.h"

namespace shardwise::mend_detail {

/// Reed-Solomon's code over GF(2^8): parity block r is the sum of all data blocks s, each times
/// 1 / ((255 - r) xor s). Any square part of these factors has an inverse (Cauchy). Immutable.
class ErasureCode {
 public:
  /// Takes the parity blocks by their numbers in the group.
  explicit ErasureCode(std::vector<std::size_t> rows);

  std::size_t rows() const { return rows_.size(); }

  /// Adds a data block times its factor to the sum of each row. The sums have room for the block's
  /// bytes rounded up to kParityStepBytes; bytes after the block count as zeros. Requires source
  /// + every row < kMostGroupBlocks.
  void add(std::size_t source, std::span<const std::byte> data,
           std::span<std::byte* const> sums) const;

  /// Puts the missing blocks into `found`. Requires that the sums of the first missing.size() rows
  /// are of the missing blocks alone. All have `bytes` bytes, a multiple of kParityStepBytes.
  void solve(std::span<const std::size_t> missing, std::span<std::byte* const> sums,
             std::span<std::byte* const> found, std::size_t bytes) const;

 private:
  std::vector<std::size_t> rows_;
  std::vector<unsigned char> tables_;  // of each source: 32 bytes for each row
};

}  // namespace shardwise::mend_detail
