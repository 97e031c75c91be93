#include "shardwise/shard/notation/detail/dim_piece.h"

#include <fmt/format.h>

#include <algorithm>

#include "shardwise/shard/detail/dim_cut.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

std::int64_t ceil_div(std::int64_t dividend, std::int64_t divisor) {
  return dividend / divisor + (dividend % divisor != 0);
}

}  // namespace

void DimPiece::cut(std::int64_t split, std::int64_t parts, std::int64_t part) {
  if (parts == 1 || length_ == 0) return;
  const std::int64_t chunk = ceil_div(length_, split);
  const std::int64_t full = length_ / chunk, rest = length_ % chunk;
  const Interval of_full = block_at(part, ceil_div(chunk, parts), chunk);
  const Interval of_rest = block_at(part, ceil_div(rest, parts), rest);
  const std::int64_t kept = of_full.end - of_full.begin;
  cuts_[num_cuts_++] = {chunk, kept, of_full.begin, full * kept, full * chunk + of_rest.begin};
  length_ = full * kept + (of_rest.end - of_rest.begin);
}

std::int64_t DimPiece::index_at(std::int64_t local) const {
  for (std::size_t i = num_cuts_; i-- > 0;) {
    const Cut& cut = cuts_[i];
    local = local < cut.in_full ? local / cut.part * cut.chunk + cut.first + local % cut.part
                                : cut.last_begin + (local - cut.in_full);
  }
  return local;
}

std::vector<IndexRun> DimPiece::runs() const {
  std::vector<IndexRun> runs;
  for (std::int64_t first = 0; first < length_;) {
    if (runs.size() == kMostRuns) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("placements: a device holds more than {} runs of a dim of extent {}; "
                              "needed are at most as many",
                              kMostRuns, extent_));
    }
    const std::int64_t begin = index_at(first);
    const auto in_run = [&](std::int64_t local) {
      return index_at(local) - begin == local - first;
    };
    // Indices ascend, so all indices after a gap stay after it. Doubling, then halving, finds the
    // gap.
    std::int64_t last = first, step = 1;
    while (step < length_ - last && in_run(last + step)) {
      last += step;
      step *= 2;
    }
    std::int64_t beyond = last + std::min(step, length_ - last);
    while (beyond - last > 1) {
      const std::int64_t middle = last + (beyond - last) / 2;
      (in_run(middle) ? last : beyond) = middle;
    }
    runs.push_back({begin, begin + (last - first) + 1});
    first = last + 1;
  }
  return runs;
}

DimPiece piece_at(const Mesh& mesh, std::span<const Placement> placements, std::size_t dim,
                  std::int64_t extent, std::int64_t position) {
  DimPiece piece(extent);
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    const Placement& placement = placements[axis];
    if (!placement.cuts() || placement.dim != dim) continue;
    piece.cut(placement.split, mesh.axes()[axis].size, mesh.coordinate(position, axis));
  }
  return piece;
}

}  // namespace shardwise::detail
