#include "shardwise/shard/plan/detail/piece_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "shardwise/shard/error.h"
#include "shardwise/shard/plan/detail/box_stack.h"
#include "shardwise/shard/plan/detail/cover.h"
#include "shardwise/shard/plan/detail/shares.h"

namespace shardwise::detail {
namespace {

/// Up to this number of parts, every pair is compared.
constexpr std::size_t kFewParts = 16;

PackedBoxes boxes_of(const Replicas& replicas, const PackedBoxes& boxes) {
  PackedBoxes groups(boxes.rank());
  groups.reserve(replicas.num_groups());
  for (std::size_t group = 0; group < replicas.num_groups(); ++group) {
    const std::uint32_t member = replicas.of(group).front();
    groups.push_back(boxes.begin_of(member), boxes.end_of(member));
  }
  return groups;
}

[[noreturn]] void fail_missing(std::size_t number, const Piece& target, const Index& element) {
  throw Error(ErrorCode::invalid_argument,
              fmt::format("transfer plan: element {} of target {}, {} at place {}, is in no source",
                          to_string(element), number, to_string(target.box), target.place));
}

bool any_overlap(const PackedBoxes& boxes) {
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (overlap(boxes.rank(), boxes.begin_of(i), boxes.end_of(i), boxes.begin_of(j),
                  boxes.end_of(j))) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

PiecePlanner::PiecePlanner(const PieceList& sources, const PieceList& targets,
                           const PlanOptions& options)
    : PiecePlanner(group_replicas(sources.boxes()), sources, targets, options) {}

PiecePlanner::PiecePlanner(Replicas replicas, const PieceList& sources, const PieceList& targets,
                           const PlanOptions& options)
    : targets_(targets),
      options_(options),
      groups_(boxes_of(replicas, sources.boxes())),
      overlaps_(groups_, targets.boxes()),
      chooser_(std::move(replicas), sources.places(), options.topology),
      parts_(groups_.rank()) {}

void PiecePlanner::plan(std::size_t target, TargetCopies& copies) {
  copies.sources.clear();
  copies.boxes.clear();
  if (targets_.boxes().empty_at(target)) return;
  const Hits hits = overlaps_.of(target);
  const std::size_t rank = groups_.rank();
  const std::int64_t *begin = targets_.boxes().begin_of(target),
                     *end = targets_.boxes().end_of(target);
  wanted_ = 1;
  for (std::size_t dim = 0; dim < rank; ++dim) {
    if (__builtin_mul_overflow(wanted_, end[dim] - begin[dim], &wanted_)) {
      targets_.box(target).num_elements();  // throws
    }
  }
  parts_.clear();
  volume_.clear();
  for (const std::uint32_t group : hits) {
    std::int64_t part_begin[kMaxRank], part_end[kMaxRank], volume = 1;
    for (std::size_t dim = 0; dim < rank; ++dim) {
      part_begin[dim] = std::max(begin[dim], groups_.begin_of(group)[dim]);
      part_end[dim] = std::min(end[dim], groups_.end_of(group)[dim]);
      volume *= part_end[dim] - part_begin[dim];
    }
    parts_.push_back(part_begin, part_end);
    volume_.push_back(volume);
  }
  if (options_.reduction != Reduction::none) return take_all(target, hits, copies);
  if (is_tiled(target)) return choose_whole_parts(target, hits, copies);
  choose_shares(target, hits, copies);
}

bool PiecePlanner::is_tiled(std::size_t target) const {
  if (parts_.size() > kFewParts) return is_tiling(parts_, targets_.box(target));
  std::int64_t missing = wanted_;
  for (const std::int64_t volume : volume_) {
    if (volume > missing) return false;
    missing -= volume;
  }
  return missing == 0 && !any_overlap(parts_);
}

void PiecePlanner::choose_whole_parts(std::size_t target, Hits hits, TargetCopies& copies) {
  const DeviceId place = targets_.place(target);
  const Topology::Site site = options_.topology.site(place);
  for (std::size_t i = 0; i < hits.size(); ++i) {
    const ReplicaChooser::Choice choice = chooser_.choose(hits[i], place, site);
    chooser_.count_sent(hits[i], choice, volume_[i]);
    copies.sources.push_back(choice.source);
  }
  std::sort(copies.sources.begin(), copies.sources.end());
}

void PiecePlanner::choose_shares(std::size_t target, Hits hits, TargetCopies& copies) {
  // Groups overlap in part. The nearest source gives first, then the least busy one; each gives the
  // elements that are still missing.
  struct Giver {
    ReplicaChooser::Choice choice;
    std::size_t hit;
  };
  const DeviceId place = targets_.place(target);
  const Topology::Site site = options_.topology.site(place);
  std::vector<Giver> givers;
  for (std::size_t i = 0; i < hits.size(); ++i) {
    givers.push_back({chooser_.choose(hits[i], place, site), i});
  }
  std::sort(givers.begin(), givers.end(), [](const Giver& a, const Giver& b) {
    return std::tie(a.choice.link, a.choice.sent, a.choice.source) <
           std::tie(b.choice.link, b.choice.sent, b.choice.source);
  });
  PackedBoxes boxes(parts_.rank());
  for (const Giver& giver : givers) {
    boxes.push_back(parts_.begin_of(giver.hit), parts_.end_of(giver.hit));
  }
  Shares shared = share_out(boxes, targets_.box(target));
  if (shared.missing) fail_missing(target, targets_[target], *shared.missing);

  std::vector<Share>& shares = shared.shares;
  const auto choice_of = [&givers](const Share& share) -> const ReplicaChooser::Choice& {
    return givers[static_cast<std::size_t>(share.giver)].choice;
  };
  std::sort(shares.begin(), shares.end(), [&](const Share& a, const Share& b) {
    const std::uint32_t i = choice_of(a).source, j = choice_of(b).source;
    if (i != j) return i < j;
    return std::lexicographical_compare(a.box.begin().begin(), a.box.begin().end(),
                                        b.box.begin().begin(), b.box.begin().end());
  });
  for (const Share& share : shares) {
    const Giver& giver = givers[static_cast<std::size_t>(share.giver)];
    chooser_.count_sent(hits[giver.hit], giver.choice, share.box.num_elements());
    copies.sources.push_back(giver.choice.source);
    copies.boxes.push_back(share.box);
  }
}

void PiecePlanner::take_all(std::size_t target, Hits hits, TargetCopies& copies) {
  if (!is_tiled(target)) {
    const Shares shared = share_out(parts_, targets_.box(target));
    if (shared.missing) fail_missing(target, targets_[target], *shared.missing);
  }
  for (const std::uint32_t group : hits) {
    for (const std::uint32_t source : chooser_.replicas().of(group)) {
      copies.sources.push_back(source);
    }
  }
  std::sort(copies.sources.begin(), copies.sources.end());
}

}  // namespace shardwise::detail
