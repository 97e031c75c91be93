#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace shardwise::detail {

/// A part of a document, or all of it.
struct PackPiece {
  std::int64_t document, begin, length;

  bool operator==(const PackPiece&) const = default;
};

/// The pieces in each pack of some documents. Immutable, thread-safe.
class PackPlan {
 public:
  /// Plans documents first_document, first_document + 1, .. with these lengths. Pieces are taken
  /// longest first; each goes into the fitting pack with the least room, or into a new one.
  /// Requires window >= 1 and lengths >= 0.
  PackPlan(std::int64_t first_document, std::span<const std::int64_t> lengths, std::int64_t window);

  std::int64_t num_packs() const { return static_cast<std::int64_t>(begins_.size()) - 1; }

  /// In the pack's order. Requires 0 <= number < num_packs().
  std::span<const PackPiece> pack(std::int64_t number) const;

  std::size_t memory_bytes() const;

 private:
  std::vector<PackPiece> pieces_;    // by pack
  std::vector<std::size_t> begins_;  // per pack its first piece; at the end, the number of pieces
};

}  // namespace shardwise::detail
