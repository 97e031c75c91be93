#include "shardwise/checkpoint/detail/write/writers.h"

#include <algorithm>
#include <cmath>

#include "shardwise/checkpoint/detail/write/save_plan.h"

namespace shardwise::detail {
namespace {

// A dim that is cut is to have so many rows for each writer, so that their shares can be even.
constexpr std::int64_t kRowsPerWriter = 16;

// The outermost dim that is long enough, or else the longest one. Requires a rank > 0.
std::size_t dim_to_cut(const Box& box, std::size_t writers) {
  std::size_t longest = 0;
  for (std::size_t dim = 0; dim < box.rank(); ++dim) {
    if (box.extent(dim) / kRowsPerWriter >= static_cast<std::int64_t>(writers)) return dim;
    if (box.extent(dim) > box.extent(longest)) longest = dim;
  }
  return longest;
}

/// How many of `bytes` each load gets so that the lowest ones rise to one level.
std::vector<double> level(std::span<const double> loads, double bytes) {
  std::vector<double> sorted(loads.begin(), loads.end());
  std::sort(sorted.begin(), sorted.end());
  double below = 0, height = 0;
  for (std::size_t count = 1; count <= sorted.size(); ++count) {
    below += sorted[count - 1];
    height = (below + bytes) / static_cast<double>(count);
    if (count == sorted.size() || height <= sorted[count]) break;
  }
  std::vector<double> shares;
  for (const double load : loads) shares.push_back(std::max(0.0, height - load));
  return shares;
}

class Loads {
 public:
  explicit Loads(std::int64_t writers) : bytes_(as_size(writers), 0) {}

  std::vector<WriterShare> give(const HeldPiece& piece) {
    const double bytes =
        static_cast<double>(as_size(piece.box.num_elements()) * piece.element_bytes);
    if (piece.writers.size() == 1 || bytes < static_cast<double>(kContiguousBelowBytes)) {
      const std::int64_t least = *std::min_element(piece.writers.begin(), piece.writers.end(),
                                                   [this](std::int64_t a, std::int64_t b) {
                                                     return bytes_[as_size(a)] < bytes_[as_size(b)];
                                                   });
      bytes_[as_size(least)] += bytes;
      return {{least, piece.box}};
    }
    return cut(piece, dim_to_cut(piece.box, piece.writers.size()), bytes);
  }

 private:
  std::vector<WriterShare> cut(const HeldPiece& piece, std::size_t dim, double bytes) {
    std::vector<double> loads;
    for (const std::int64_t writer : piece.writers) loads.push_back(bytes_[as_size(writer)]);
    const std::vector<double> shares = level(loads, bytes);
    const auto extent = static_cast<double>(piece.box.extent(dim));
    std::vector<WriterShare> result;
    Index begin = piece.box.begin(), end = piece.box.end();
    double sum = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      sum += shares[i];
      const bool last = i + 1 == shares.size();
      end[dim] =
          last ? piece.box.end(dim)
               : piece.box.begin(dim) + std::min(std::int64_t{std::llround(sum / bytes * extent)},
                                                 piece.box.extent(dim));
      if (end[dim] == begin[dim]) continue;
      bytes_[as_size(piece.writers[i])] +=
          static_cast<double>(end[dim] - begin[dim]) / extent * bytes;
      result.push_back({piece.writers[i], Box(begin, end)});
      begin[dim] = end[dim];
    }
    return result;
  }

  std::vector<double> bytes_;
};

}  // namespace

std::vector<std::int64_t> writers_of(std::span<const std::int64_t> positions,
                                     std::int64_t mesh_size, std::int64_t writers) {
  std::vector<std::int64_t> result;
  for (const std::int64_t position : positions) {
    result.push_back(position * writers / mesh_size);
  }
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

std::vector<std::vector<WriterShare>> share_out(std::span<const HeldPiece> pieces,
                                                std::int64_t writers) {
  std::vector<std::vector<WriterShare>> shares(pieces.size());
  Loads loads(writers);
  for (const bool alone : {true, false}) {
    for (std::size_t p = 0; p < pieces.size(); ++p) {
      if ((pieces[p].writers.size() == 1) == alone) shares[p] = loads.give(pieces[p]);
    }
  }
  return shares;
}

}  // namespace shardwise::detail
