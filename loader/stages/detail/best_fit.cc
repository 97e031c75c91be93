#include "shardwise/loader/stages/detail/best_fit.h"

#include <algorithm>
#include <compare>
#include <numeric>

namespace shardwise::detail {
namespace {

// A pack with room left.
struct OpenPack {
  std::int64_t room;
  std::size_t pack;

  auto operator<=>(const OpenPack&) const = default;
};

// The open packs, those with the least room first: a sorted array, which is faster than a tree for
// the few hundred packs in it.
class OpenPacks {
 public:
  // The pack that a piece of this length goes into; num_packs for a new one.
  std::size_t place(std::int64_t length, std::int64_t window, std::size_t num_packs) {
    OpenPack chosen{window, num_packs};
    const auto fit = std::lower_bound(open_.begin(), open_.end(), OpenPack{length, 0});
    if (fit != open_.end()) {
      chosen = *fit;
      open_.erase(fit);
    }
    const OpenPack rest{chosen.room - length, chosen.pack};
    if (rest.room > 0) open_.insert(std::upper_bound(open_.begin(), open_.end(), rest), rest);
    return chosen.pack;
  }

 private:
  std::vector<OpenPack> open_;
};

std::vector<PackPiece> pieces_of(std::int64_t first_document, std::span<const std::int64_t> lengths,
                                 std::int64_t window) {
  std::vector<PackPiece> pieces;
  pieces.reserve(lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t document = first_document + static_cast<std::int64_t>(i);
    for (std::int64_t begin = 0; begin < lengths[i];) {
      const std::int64_t length = std::min(window, lengths[i] - begin);
      pieces.push_back({document, begin, length});
      begin += length;
    }
  }
  std::ranges::stable_sort(
      pieces, [](const PackPiece& a, const PackPiece& b) { return a.length > b.length; });
  return pieces;
}

}  // namespace

PackPlan::PackPlan(std::int64_t first_document, std::span<const std::int64_t> lengths,
                   std::int64_t window) {
  const std::vector<PackPiece> pieces = pieces_of(first_document, lengths, window);
  std::vector<std::size_t> pack_of, counts;
  pack_of.reserve(pieces.size());
  OpenPacks open;
  for (const PackPiece& piece : pieces) {
    const std::size_t pack = open.place(piece.length, window, counts.size());
    if (pack == counts.size()) counts.push_back(0);
    ++counts[pack];
    pack_of.push_back(pack);
  }
  begins_.resize(counts.size() + 1);
  std::partial_sum(counts.begin(), counts.end(), begins_.begin() + 1);
  std::vector<std::size_t> next(begins_.begin(), begins_.end() - 1);
  pieces_.resize(pieces.size());
  for (std::size_t i = 0; i < pieces.size(); ++i) pieces_[next[pack_of[i]]++] = pieces[i];
}

std::span<const PackPiece> PackPlan::pack(std::int64_t number) const {
  const std::size_t begin = begins_[static_cast<std::size_t>(number)];
  const std::size_t end = begins_[static_cast<std::size_t>(number) + 1];
  return std::span(pieces_).subspan(begin, end - begin);
}

std::size_t PackPlan::memory_bytes() const {
  return pieces_.size() * sizeof(PackPiece) + begins_.size() * sizeof(std::size_t) + sizeof(*this);
}

}  // namespace shardwise::detail
