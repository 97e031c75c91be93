#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "shardwise/shard/plan/transfer_plan.h"

namespace shardwise {
namespace {

/// Finds the groups of TransferClass.
class Groups {
 public:
  explicit Groups(const TransferPlan& plan)
      : plan_(plan), group_of_(plan.sources().size(), kNone) {}

  /// The distinct sources of a target, ascending.
  void add(std::size_t target, const std::vector<std::size_t>& sources) {
    const std::size_t known = group_of_[sources.front()];
    const std::size_t group = known == kNone ? groups_.size() : known;
    if (known == kNone) groups_.push_back({sources.size(), 0, 0});
    exact_ &= groups_[group].sources == sources.size();
    bool has_source = false;
    for (const std::size_t source : sources) {
      exact_ &= group_of_[source] == known;
      group_of_[source] = group;
      has_source |= plan_.sources().place(source) == plan_.targets().place(target);
    }
    ++groups_[group].targets;
    if (has_source) ++groups_[group].on_both_sides;
  }

  /// True if every target and source in use is in exactly one group. In each group the devices of
  /// one side are among those of the other (some may hold nothing on one side), and if several
  /// give, several take.
  bool found() const {
    return exact_ && std::all_of(groups_.begin(), groups_.end(), [](const Group& group) {
             return group.on_both_sides == std::min(group.sources, group.targets) &&
                    (group.targets > 1 || group.sources == 1);
           });
  }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  struct Group {
    std::size_t sources, targets;
    std::size_t on_both_sides;  // targets on the device of a source
  };

  const TransferPlan& plan_;
  std::vector<std::size_t> group_of_;  // per source
  std::vector<Group> groups_;
  bool exact_ = true;
};

}  // namespace

std::string_view name(TransferClass c) {
  switch (c) {
    case TransferClass::nothing:
      return "nothing";
    case TransferClass::slice:
      return "slice";
    case TransferClass::permute:
      return "permute";
    case TransferClass::broadcast:
      return "broadcast";
    case TransferClass::scatter:
      return "scatter";
    case TransferClass::all_gather:
      return "all_gather";
    case TransferClass::gather:
      return "gather";
    case TransferClass::all_to_all:
      return "all_to_all";
    case TransferClass::all_reduce:
      return "all_reduce";
    case TransferClass::reduce_scatter:
      return "reduce_scatter";
    case TransferClass::reduce:
      return "reduce";
    case TransferClass::general:
      return "general";
  }
  return "unknown";
}

TransferClass TransferPlan::classify() const {
  bool in_place = true;       // each target is filled by one source, in the same place
  bool single = true;         // each target is filled by one source
  bool one_to_one = true;     // and no source is used twice
  bool several = true;        // each target is filled by several sources
  bool own_box = true;        // a source with the target's box is in the same place
  bool whole_sources = true;  // each copy is all of its source
  bool whole_targets = true;  // each copy is all of its target
  std::vector<bool> used(sources_.size(), false);
  Groups groups(*this);
  std::vector<std::size_t> from;
  for (std::size_t target = 0; target < targets_.size(); ++target) {
    const CopyRange copies = copies_to(static_cast<std::int64_t>(target));
    if (copies.empty()) continue;
    const Box wanted = targets_.box(target);
    bool has_own_box = false;
    from.clear();
    for (const Copy& copy : copies) {
      const auto source = static_cast<std::size_t>(copy.source);
      const Box held = sources_.box(source);
      const bool local = sources_.place(source) == targets_.place(target);
      has_own_box |= local && held == wanted;
      in_place &= local;
      whole_sources &= copy.box == held;
      whole_targets &= copy.box == wanted;
      if (from.empty() || from.back() != source) from.push_back(source);
    }
    for (const std::size_t source : from) {
      one_to_one &= !used[source];
      used[source] = true;
    }
    groups.add(target, from);
    in_place &= from.size() == 1;
    single &= from.size() == 1;
    several &= from.size() > 1;
    own_box &= has_own_box;
  }
  if (in_place) return own_box ? TransferClass::nothing : TransferClass::slice;
  if (reduction_ != Reduction::none) {
    if (!whole_targets) return TransferClass::general;
    if (!groups.found()) return TransferClass::reduce;
    return own_box ? TransferClass::all_reduce : TransferClass::reduce_scatter;
  }
  if (single && !whole_sources) return TransferClass::scatter;
  if (single) return one_to_one ? TransferClass::permute : TransferClass::broadcast;
  if (whole_sources) return groups.found() ? TransferClass::all_gather : TransferClass::gather;
  return several && groups.found() ? TransferClass::all_to_all : TransferClass::general;
}

}  // namespace shardwise
