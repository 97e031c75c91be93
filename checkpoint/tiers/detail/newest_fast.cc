#include "shardwise/tiers/detail/newest_fast.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "shardwise/checkpoint/detail/format/step_name.h"
#include "shardwise/tiers/detail/inventory.h"

namespace shardwise::tiers_detail {

std::optional<TierStep> newest_fast(const ProcessGroup& group, FileSystem& file_system,
                                    const AssemblyPlaces& places, StepRange range,
                                    const NeededBoxes& needed, PassedOver& passed_over) {
  const Inventory inventory = take_inventory(file_system, places.sources.fast);
  const AllInventories all = gather_inventories(group, inventory);
  passed_over.damaged = all.damaged;
  using Entry = std::pair<const SavedStep, StepHolders>;
  std::vector<const Entry*> entries;
  std::vector<std::string> left;
  for (const Entry& entry : all.steps) {
    const std::int64_t step = entry.first.step;
    if (step < range.least || step > range.most) continue;
    if (entry.second.is_set_aside && range.least != range.most) {
      left.push_back(
          fmt::format("step {} of the fast tier: a run that went back has set it aside", step));
    } else {
      entries.push_back(&entry);
    }
  }
  std::ranges::sort(entries, std::ranges::greater(), [](const Entry* entry) {
    return std::tie(entry->first.step, entry->second.generation, entry->first.id);
  });
  for (const Entry* entry : entries) {
    const auto& [step, holders] = *entry;
    passed_over.numbers.insert(step.step);
    if (!holders.is_whole()) {
      passed_over.steps.push_back(
          fmt::format("step {} of the fast tier: {} of {} shard files are nowhere", step.step,
                      holders.num_files - std::ssize(holders.of), holders.num_files));
      continue;
    }
    AssembledStep found = assemble(group, file_system, places, inventory, *entry, needed);
    if (found.refused) {
      passed_over.numbers.erase(step.step);
      passed_over.refused = found.refused;
      return std::nullopt;
    }
    passed_over.damaged.insert(passed_over.damaged.end(), found.damaged.begin(),
                               found.damaged.end());
    if (!found.problem.empty()) {
      passed_over.steps.push_back(
          fmt::format("step {} of the fast tier: {}", step.step, found.problem));
      continue;
    }
    passed_over.numbers.erase(step.step);
    const auto name = detail::parse_step_name(found.directory.filename().string());
    return TierStep{.tier = Tier::fast,
                    .step = {step.step, name->generation, found.directory},
                    .files_taken = found.files_taken,
                    .bytes_taken = found.bytes_taken,
                    .mended = std::move(found.mended)};
  }
  // Nobody takes them for a fresh start.
  passed_over.steps.insert(passed_over.steps.end(), left.begin(), left.end());
  return std::nullopt;
}

}  // namespace shardwise::tiers_detail
