#include "shardwise/shard/detail/replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "shardwise/shard/detail/cover.h"
#include "shardwise/shard/error.h"

namespace shardwise::detail {
namespace {

bool before(const Index& a, const Index& b) {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
}

bool before(const Box& a, const Box& b) {
  return a.begin() == b.begin() ? before(a.end(), b.end()) : before(a.begin(), b.begin());
}

std::vector<Box> subtract_from_all(const std::vector<Box>& boxes, const Box& hole) {
  std::vector<Box> rest;
  for (const Box& box : boxes) {
    for (const Box& part : subtract(box, hole)) rest.push_back(part);
  }
  return rest;
}

[[noreturn]] void fail_missing(std::int64_t number, const Piece& target,
                               const std::vector<Box>& missing) {
  const Box& first = *std::min_element(missing.begin(), missing.end(),
                                       [](const Box& a, const Box& b) { return before(a, b); });
  throw Error(ErrorCode::invalid_argument,
              fmt::format("TransferPlan: element {} of target {}, {} at place {}, is in no source",
                          to_string(first.begin()), number, to_string(target.box), target.place));
}

void sort_by_source(std::vector<Copy>& copies, std::size_t first) {
  std::sort(copies.begin() + static_cast<std::ptrdiff_t>(first), copies.end(),
            [](const Copy& a, const Copy& b) {
              return a.source == b.source ? before(a.box, b.box) : a.source < b.source;
            });
}

}  // namespace

std::vector<Replicas> group_replicas(std::span<const Piece> sources) {
  std::vector<std::int64_t> order;
  for (std::size_t i = 0; i < sources.size(); ++i) {
    if (!sources[i].box.empty()) order.push_back(static_cast<std::int64_t>(i));
  }
  const auto box = [&](std::int64_t i) -> const Box& {
    return sources[static_cast<std::size_t>(i)].box;
  };
  std::sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) {
    return box(i) == box(j) ? i < j : before(box(i), box(j));
  });
  std::vector<Replicas> groups;
  for (const std::int64_t i : order) {
    if (groups.empty() || groups.back().box != box(i)) groups.push_back({box(i), {}});
    groups.back().sources.push_back(i);
  }
  return groups;
}

ReplicaChooser::ReplicaChooser(std::span<const Piece> sources, std::span<const Piece> targets,
                               std::vector<Replicas> groups)
    : sources_(sources), targets_(targets), groups_(std::move(groups)), sent_(sources.size(), 0) {
  residents_.reserve(sources.size());
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    for (const std::int64_t source : groups_[group].sources) {
      residents_.push_back({sources[static_cast<std::size_t>(source)].place,
                            static_cast<std::int64_t>(group), source});
    }
  }
  std::sort(residents_.begin(), residents_.end());
}

const Piece& ReplicaChooser::target_at(std::int64_t target) const {
  return targets_[static_cast<std::size_t>(target)];
}

const Box& ReplicaChooser::box_of(std::int64_t group) const {
  return groups_[static_cast<std::size_t>(group)].box;
}

std::vector<Box> ReplicaChooser::parts(std::int64_t target,
                                       std::span<const std::int64_t> hits) const {
  std::vector<Box> parts;
  for (const std::int64_t group : hits) {
    parts.push_back(intersect(box_of(group), target_at(target).box));
  }
  return parts;
}

std::int64_t ReplicaChooser::best_source(std::int64_t group, DeviceId place) const {
  const auto resident =
      std::lower_bound(residents_.begin(), residents_.end(), Resident{place, group, 0});
  if (resident != residents_.end() && resident->place == place && resident->group == group) {
    return resident->source;
  }
  return groups_[static_cast<std::size_t>(group)].sources.front();
}

void ReplicaChooser::add_copy(std::int64_t group, std::int64_t target, const Box& box,
                              std::vector<Copy>& copies) {
  const DeviceId place = target_at(target).place;
  const std::int64_t source = best_source(group, place);
  copies.push_back({source, target, box});
  if (sources_[static_cast<std::size_t>(source)].place == place) return;

  const auto busier = [this](std::int64_t i, std::int64_t j) {
    return std::pair(sent_[static_cast<std::size_t>(i)], i) >
           std::pair(sent_[static_cast<std::size_t>(j)], j);
  };
  std::vector<std::int64_t>& heap = groups_[static_cast<std::size_t>(group)].sources;
  std::pop_heap(heap.begin(), heap.end(), busier);
  sent_[static_cast<std::size_t>(source)] += box.num_elements();
  std::push_heap(heap.begin(), heap.end(), busier);
}

void ReplicaChooser::choose_tiled(std::int64_t target, std::span<const std::int64_t> hits,
                                  std::vector<Copy>& copies) {
  const std::size_t first = copies.size();
  for (const std::int64_t group : hits) {
    add_copy(group, target, intersect(box_of(group), target_at(target).box), copies);
  }
  sort_by_source(copies, first);
}

void ReplicaChooser::choose(std::int64_t target, std::span<const std::int64_t> hits,
                            std::vector<Copy>& copies) {
  const auto& [place, box] = target_at(target);
  if (!find_miscount(parts(target, hits), box)) return choose_tiled(target, hits, copies);

  // Groups overlap in part. What lies at the target's place gives first, then the least busy
  // source, each of them what is still missing.
  struct Candidate {
    bool remote;
    std::int64_t sent, source, group;

    auto operator<=>(const Candidate&) const = default;
  };
  std::vector<Candidate> candidates;
  for (const std::int64_t group : hits) {
    const std::int64_t source = best_source(group, place);
    const std::size_t i = static_cast<std::size_t>(source);
    const bool remote = sources_[i].place != place;
    candidates.push_back({remote, remote ? sent_[i] : 0, source, group});
  }
  std::sort(candidates.begin(), candidates.end());
  const std::size_t first = copies.size();
  std::vector<Box> missing{box};
  for (const Candidate& candidate : candidates) {
    const Box& held = box_of(candidate.group);
    for (const Box& part : missing) {
      const Box found = intersect(part, held);
      if (!found.empty()) add_copy(candidate.group, target, found, copies);
    }
    missing = subtract_from_all(missing, held);
  }
  if (!missing.empty()) fail_missing(target, target_at(target), missing);
  sort_by_source(copies, first);
}

void ReplicaChooser::take_all(std::int64_t target, std::span<const std::int64_t> hits,
                              std::vector<Copy>& copies) const {
  const Box& box = target_at(target).box;
  const std::vector<Box> held = parts(target, hits);
  if (find_miscount(held, box)) {
    std::vector<Box> missing{box};
    for (const Box& part : held) missing = subtract_from_all(missing, part);
    if (!missing.empty()) fail_missing(target, target_at(target), missing);
  }
  const std::size_t first = copies.size();
  for (std::size_t i = 0; i < hits.size(); ++i) {
    for (const std::int64_t source : groups_[static_cast<std::size_t>(hits[i])].sources) {
      copies.push_back({source, target, held[i]});
    }
  }
  sort_by_source(copies, first);
}

}  // namespace shardwise::detail
