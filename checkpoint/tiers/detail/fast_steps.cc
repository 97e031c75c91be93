#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "shardwise/checkpoint/detail/read/file_check.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/shard/error.h"
#include "shardwise/tiers/detail/inventory.h"
#include "shardwise/tiers/detail/mending.h"
#include "shardwise/tiers/detail/newest_fast.h"
#include "shardwise/tiers/tiers.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;

enum class Reading { sizes, all_bytes };

std::shared_ptr<FileSystem> file_system_of(const FastStepOptions& options) {
  return options.file_system ? options.file_system : posix_file_system();
}

/// Reads all copies of a file; adds each one's problem, and the chunks that are nowhere, to `step`.
void verify_file(FileSystem& file_system, tiers_detail::ChunkDonors& donors,
                 const detail::Manifest& manifest, std::int64_t file,
                 const std::vector<fs::path>& copies, FastStep& step) {
  std::optional<std::vector<std::string>> nowhere;  // by the best copy so far
  for (const fs::path& copy : copies) {
    const fs::path directory = copy.parent_path();
    try {
      detail::StoredCheckpoint stored = detail::unread_checkpoint(
          {directory, manifest.step, file_system.open_directory(directory)}, manifest);
      const auto bad = detail::find_bad_chunks(stored, static_cast<std::size_t>(file));
      tiers_detail::Draft draft{directory, file, {}};
      for (const detail::BadChunk& chunk : bad) {
        step.damaged.push_back(chunk.problem);
        draft.bad.push_back(chunk.number);
      }
      if (nowhere && nowhere->empty()) continue;
      std::ranges::sort(draft.bad);
      nowhere = tiers_detail::chunks_nowhere(donors, stored, draft);
    } catch (const Error& e) {
      if (e.code() != ErrorCode::corrupt && e.code() != ErrorCode::io) throw;
      step.damaged.emplace_back(e.what());
    }
  }
  if (!nowhere) {
    const detail::FileEntry& entry = manifest.files[static_cast<std::size_t>(file)];
    step.nowhere.push_back(entry.name);
    return;
  }
  step.nowhere.insert(step.nowhere.end(), nowhere->begin(), nowhere->end());
}

FastStep step_of(FileSystem& file_system, tiers_detail::ChunkDonors& donors, std::int64_t number,
                 const tiers_detail::HeldFiles& held, Reading reading) {
  detail::Manifest manifest =
      detail::parse_manifest(held.manifest, fmt::format("manifest of step {}", number));
  manifest.step = number;
  FastStep step{.step = number,
                .is_set_aside = held.is_set_aside,
                .files = held.num_files,
                .directories = held.directories};
  for (std::int64_t f = 0; f < held.num_files; ++f) {
    const detail::FileEntry& entry = manifest.files[static_cast<std::size_t>(f)];
    step.bytes += entry.bytes;
    const auto copies = held.paths.find(f);
    if (copies == held.paths.end()) {
      step.nowhere.push_back(entry.name);
    } else if (reading == Reading::all_bytes) {
      verify_file(file_system, donors, manifest, f, copies->second, step);
    }
  }
  return step;
}

FastSteps steps_in(std::span<const fs::path> roots, const FastStepOptions& options,
                   Reading reading) {
  const std::shared_ptr<FileSystem> file_system = file_system_of(options);
  const tiers_detail::Inventory inventory = tiers_detail::take_inventory(*file_system, roots);
  tiers_detail::ChunkDonors donors(*file_system, {{roots.begin(), roots.end()}, options.durable});
  FastSteps found{.steps = {}, .damaged = inventory.damaged};
  for (const auto& [step, held] : inventory.steps) {
    found.steps.push_back(step_of(*file_system, donors, step.step, held, reading));
  }
  std::ranges::stable_sort(found.steps, std::ranges::greater(), &FastStep::step);
  return found;
}

void refuse_if_there(FileSystem& file_system, const fs::path& target, std::int64_t step) {
  const std::vector<detail::StepName> names = detail::committed_names(file_system, target);
  if (std::ranges::find(names, step, &detail::StepName::step) == names.end()) return;
  throw Error(ErrorCode::already_exists,
              fmt::format("gather step {}: {} has it already", step, target.string()));
}

}  // namespace

FastSteps fast_steps(std::span<const fs::path> roots, const FastStepOptions& options) {
  return steps_in(roots, options, Reading::sizes);
}

FastSteps verify_fast_steps(std::span<const fs::path> roots, const FastStepOptions& options) {
  return steps_in(roots, options, Reading::all_bytes);
}

TierStep gather_fast_step(std::span<const fs::path> roots, const fs::path& target,
                          std::optional<std::int64_t> step, const FastStepOptions& options) {
  const std::shared_ptr<FileSystem> file_system = file_system_of(options);
  detail::make_root(*file_system, target);
  const tiers_detail::StepRange range =
      step ? tiers_detail::StepRange{*step, *step} : tiers_detail::StepRange();
  // Before anything is copied: the newest has all its files, and mostly it is the one.
  for (const FastStep& fast : fast_steps(roots, options).steps) {
    if (!fast.nowhere.empty() || fast.step < range.least || fast.step > range.most) continue;
    if (fast.is_set_aside && !step) continue;
    refuse_if_there(*file_system, target, fast.step);
    break;
  }
  tiers_detail::PassedOver passed_over;
  std::optional<TierStep> found = tiers_detail::newest_fast(
      ProcessGroup(), *file_system, {target, {{roots.begin(), roots.end()}, options.durable}},
      range, nullptr, passed_over);
  auto& [steps, damaged, numbers, refused] = passed_over;
  if (!found) {
    steps.insert(steps.end(), damaged.begin(), damaged.end());
    const std::string what = step ? fmt::format("gather step {}", *step) : "gather the newest step";
    if (steps.empty())
      throw Error(ErrorCode::not_found, what + ": it is in none of the fast roots");
    throw Error(ErrorCode::corrupt,
                fmt::format("{}: it is not whole; {}", what, fmt::join(steps, "; ")));
  }
  found->passed_over = std::move(steps);
  found->damaged = std::move(damaged);
  return *std::move(found);
}

}  // namespace shardwise
