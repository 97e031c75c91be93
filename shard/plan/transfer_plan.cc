#include "shardwise/shard/plan/transfer_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "shardwise/shard/error.h"
#include "shardwise/shard/plan/detail/grid_planner.h"
#include "shardwise/shard/plan/detail/piece_planner.h"

namespace shardwise {
namespace {

void check_count(std::size_t pieces) {
  if (pieces < std::numeric_limits<std::uint32_t>::max()) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("transfer plan: {} pieces; needed are fewer than 2^32 - 1", pieces));
}

std::size_t rank_of(std::span<const Piece> sources, std::span<const Piece> targets) {
  if (!sources.empty()) return sources.front().box.rank();
  return targets.empty() ? 0 : targets.front().box.rank();
}

void check_ranks(std::span<const Piece> sources, std::span<const Piece> targets) {
  const Piece* first = nullptr;
  for (const std::span<const Piece> pieces : {sources, targets}) {
    for (const Piece& piece : pieces) {
      if (first == nullptr) first = &piece;
      if (piece.box.rank() == first->box.rank()) continue;
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("transfer plan: the ranks of {} at place {} and {} at place {} differ",
                      to_string(first->box), first->place, to_string(piece.box), piece.place));
    }
  }
}

/// Adds the common part of a source and a target to `box`, which has no dims. Requires that they
/// share an element.
void add_shared(const PackedBoxes& sources, std::size_t source, const PackedBoxes& targets,
                std::size_t target, Box& box) {
  const std::int64_t *begin = sources.begin_of(source), *end = sources.end_of(source);
  const std::int64_t *first = targets.begin_of(target), *last = targets.end_of(target);
  for (std::size_t dim = 0; dim < sources.rank(); ++dim) {
    box.push_back(std::max(begin[dim], first[dim]), std::min(end[dim], last[dim]));
  }
}

}  // namespace

TransferPlan TransferPlan::reshard(const Sharding& from, const Sharding& to, const Shape& shape,
                                   const Topology& topology) {
  TransferPlan plan;
  plan.sources_ = PieceList(from, shape);
  plan.targets_ = PieceList(to, shape);
  plan.first_copy_.assign(plan.targets_.size() + 1, 0);
  detail::GridPlanner planner(from, plan.sources_, to, plan.targets_, shape, topology);
  detail::TargetCopies copies;
  for (std::size_t target = 0; target < plan.targets_.size(); ++target) {
    planner.plan(static_cast<std::int64_t>(target), copies);
    plan.source_of_.insert(plan.source_of_.end(), copies.sources.begin(), copies.sources.end());
    plan.first_copy_[target + 1] = plan.source_of_.size();
  }
  return plan;
}

TransferPlan::TransferPlan(const std::vector<Piece>& sources, const std::vector<Piece>& targets,
                           const PlanOptions& options)
    : reduction_(options.reduction) {
  check_ranks(sources, targets);
  check_count(std::max(sources.size(), targets.size()));
  const std::size_t rank = rank_of(sources, targets);
  sources_ = PieceList(sources, rank);
  targets_ = PieceList(targets, rank);
  cut_boxes_ = PackedBoxes(rank);
  first_copy_.assign(targets_.size() + 1, 0);
  detail::PiecePlanner planner(sources_, targets_, options);
  source_of_.reserve(planner.overlaps());
  detail::TargetCopies copies;
  for (std::size_t target = 0; target < targets_.size(); ++target) {
    planner.plan(target, copies);
    for (std::size_t i = 0; i < copies.boxes.size(); ++i) {
      cut_copies_.push_back(source_of_.size() + i);
      cut_boxes_.push_back(copies.boxes[i]);
    }
    source_of_.insert(source_of_.end(), copies.sources.begin(), copies.sources.end());
    first_copy_[target + 1] = source_of_.size();
  }
}

CopyRange TransferPlan::copies_to(std::int64_t target) const {
  const std::size_t i = static_cast<std::size_t>(target);
  return CopyRange(this, first_copy_[i], first_copy_[i + 1]);
}

std::size_t TransferPlan::target_of(std::size_t copy) const {
  // The first target whose copies end past `copy`.
  const auto end = std::upper_bound(first_copy_.begin() + 1, first_copy_.end(), copy);
  return static_cast<std::size_t>(end - first_copy_.begin()) - 1;
}

Copy TransferPlan::copy_at(std::size_t copy, std::size_t target) const {
  const std::uint32_t source = source_of_[copy];
  Copy result{source, static_cast<std::int64_t>(target), {}};
  const auto cut = std::lower_bound(cut_copies_.begin(), cut_copies_.end(), copy);
  if (cut != cut_copies_.end() && *cut == copy) {
    result.box = cut_boxes_[static_cast<std::size_t>(cut - cut_copies_.begin())];
  } else {
    add_shared(sources_.boxes(), source, targets_.boxes(), target, result.box);
  }
  return result;
}

std::int64_t TransferPlan::moved_elements() const {
  std::int64_t moved = 0;
  for (const Copy& copy : copies()) {
    if (sources_.place(static_cast<std::size_t>(copy.source)) !=
        targets_.place(static_cast<std::size_t>(copy.target))) {
      moved += copy.box.num_elements();
    }
  }
  return moved;
}

Copy CopyRange::operator[](std::size_t i) const {
  return plan_->copy_at(first_ + i, plan_->target_of(first_ + i));
}

CopyRange::iterator CopyRange::begin() const {
  return iterator(plan_, first_, empty() ? 0 : plan_->target_of(first_));
}

CopyRange::iterator CopyRange::end() const { return iterator(plan_, last_, 0); }

Copy CopyRange::iterator::operator*() const { return plan_->copy_at(index_, target_); }

CopyRange::iterator& CopyRange::iterator::operator++() {
  ++index_;
  const auto& first = plan_->first_copy_;
  while (target_ + 2 < first.size() && first[target_ + 1] <= index_) ++target_;
  return *this;
}

CopyRange::iterator CopyRange::iterator::operator++(int) {
  iterator before = *this;
  ++*this;
  return before;
}

}  // namespace shardwise
