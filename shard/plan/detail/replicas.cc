#include "shardwise/shard/plan/detail/replicas.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

namespace shardwise::detail {
namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};

std::uint64_t hash_of(const PackedBoxes& boxes, std::size_t i) {
  std::uint64_t hash = 0;
  const std::int64_t* ends = boxes.begin_of(i);
  for (std::size_t k = 0; k < 2 * boxes.rank(); ++k) {
    hash = (hash ^ static_cast<std::uint64_t>(ends[k])) * 0x9e3779b97f4a7c15;
    hash ^= hash >> 32;
  }
  return hash;
}

/// The first of [begin, end) that fits; `end` if none fits. Requires that all after it fit.
template <class Fits>
std::size_t first_slot(std::size_t begin, std::size_t end, Fits&& fits) {
  while (begin < end) {
    const std::size_t middle = begin + (end - begin) / 2;
    if (fits(middle)) {
      end = middle;
    } else {
      begin = middle + 1;
    }
  }
  return begin;
}

}  // namespace

Replicas group_replicas(const PackedBoxes& boxes) {
  // A hash table of groups, by the box of their first member.
  std::vector<std::uint32_t> table(std::bit_ceil(2 * boxes.size() + 1), kNone);
  const std::size_t mask = table.size() - 1;
  std::vector<std::uint32_t> group_of(boxes.size(), kNone), first_member, sizes;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (boxes.empty_at(i)) continue;
    std::size_t slot = hash_of(boxes, i) & mask;
    while (table[slot] != kNone) {
      const std::int64_t* ends = boxes.begin_of(first_member[table[slot]]);
      if (std::equal(ends, ends + 2 * boxes.rank(), boxes.begin_of(i))) break;
      slot = (slot + 1) & mask;
    }
    if (table[slot] == kNone) {
      table[slot] = static_cast<std::uint32_t>(first_member.size());
      first_member.push_back(static_cast<std::uint32_t>(i));
      sizes.push_back(0);
    }
    group_of[i] = table[slot];
    ++sizes[table[slot]];
  }
  Replicas replicas{{0}, {}};
  replicas.first.reserve(sizes.size() + 1);
  for (const std::uint32_t size : sizes) replicas.first.push_back(replicas.first.back() + size);
  replicas.members.resize(replicas.first.back());
  std::vector<std::uint32_t> next(replicas.first.begin(), replicas.first.end() - 1);
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (group_of[i] != kNone) {
      replicas.members[next[group_of[i]]++] = static_cast<std::uint32_t>(i);
    }
  }
  return replicas;
}

ReplicaChooser::ReplicaChooser(Replicas replicas, std::span<const DeviceId> places,
                               const Topology& topology)
    : replicas_(std::move(replicas)),
      places_(places),
      topology_(topology),
      sent_(replicas_.members.size(), 0),
      trees_(2 * replicas_.members.size()) {
  std::vector<std::pair<Home, std::uint32_t>> sorted;
  for (std::size_t group = 0; group < replicas_.num_groups(); ++group) {
    const std::uint32_t first = replicas_.first[group];
    sorted.clear();
    for (std::uint32_t slot = first; slot < replicas_.first[group + 1]; ++slot) {
      sorted.emplace_back(home(slot), replicas_.members[slot]);
    }
    std::sort(sorted.begin(), sorted.end());
    const std::size_t count = sorted.size();
    std::uint32_t* tree = &trees_[std::size_t{2} * first];
    for (std::size_t i = 0; i < count; ++i) {
      replicas_.members[first + i] = sorted[i].second;
      tree[count + i] = first + static_cast<std::uint32_t>(i);
    }
    for (std::size_t i = count; i-- > 1;) {
      tree[i] = freer(tree[2 * i], tree[2 * i + 1]) ? tree[2 * i] : tree[2 * i + 1];
    }
  }
}

ReplicaChooser::Home ReplicaChooser::home(std::size_t slot) const {
  const DeviceId place = places_[replicas_.members[slot]];
  return {topology_.site(place), place};
}

bool ReplicaChooser::freer(std::uint32_t slot, std::uint32_t other) const {
  return sent_[slot] == sent_[other] ? replicas_.members[slot] < replicas_.members[other]
                                     : sent_[slot] < sent_[other];
}

std::uint32_t ReplicaChooser::freest(std::size_t group, std::size_t first, std::size_t last) const {
  const std::size_t begin = replicas_.first[group], count = replicas_.size_of(group);
  const std::uint32_t* tree = &trees_[2 * begin];
  std::uint32_t best = static_cast<std::uint32_t>(first);
  const auto consider = [&](std::uint32_t slot) {
    if (freer(slot, best)) best = slot;
  };
  std::size_t low = first - begin + count, high = last - begin + count;
  for (; low < high; low /= 2, high /= 2) {
    if (low % 2 == 1) consider(tree[low++]);
    if (high % 2 == 1) consider(tree[--high]);
  }
  return best;
}

ReplicaChooser::Choice ReplicaChooser::choose(std::size_t group, DeviceId place,
                                              const Topology::Site& site) const {
  const std::size_t begin = replicas_.first[group], end = replicas_.first[group + 1];
  const auto chosen = [this](Link link, std::size_t slot) {
    return Choice{link, sent_[slot], replicas_.members[slot], static_cast<std::uint32_t>(slot)};
  };
  const Home wanted{site, place};
  const std::size_t same =
      first_slot(begin, end, [&](std::size_t slot) { return home(slot) >= wanted; });
  if (same != end && home(same) == wanted) return chosen(Link::same_device, same);
  // Searches outwards from the place for the widest range with the nearest link.
  const auto link_at = [&](std::size_t slot) { return link_between(home(slot).site, site); };
  Link nearest = Link::between_slices;
  if (same != end) nearest = std::min(nearest, link_at(same));
  if (same != begin) nearest = std::min(nearest, link_at(same - 1));
  const std::size_t first =
      first_slot(begin, same, [&](std::size_t slot) { return link_at(slot) <= nearest; });
  const std::size_t last =
      first_slot(same, end, [&](std::size_t slot) { return link_at(slot) > nearest; });
  return chosen(nearest, freest(group, first, last));
}

void ReplicaChooser::count_sent(std::size_t group, const Choice& choice, std::int64_t elements) {
  if (choice.link == Link::same_device) return;
  sent_[choice.slot] += elements;
  const std::size_t count = replicas_.size_of(group);
  std::uint32_t* tree = &trees_[std::size_t{2} * replicas_.first[group]];
  for (std::size_t i = (count + choice.slot - replicas_.first[group]) / 2; i > 0; i /= 2) {
    tree[i] = freer(tree[2 * i], tree[2 * i + 1]) ? tree[2 * i] : tree[2 * i + 1];
  }
}

}  // namespace shardwise::detail
