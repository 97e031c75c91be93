#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "testing/host_tensor.h"

namespace shardwise {

/// Number, from 1, of the model that each step of a root holds; 0 for any other content. More by
/// kPinned for each name that the step has, and by kAside if it is set aside.
using Outcome = std::map<std::int64_t, std::uint64_t>;

constexpr std::uint64_t kPinned = 100, kAside = 10000;

/// Reads every step. Expects that each is whole, to the last byte, and that the newest that
/// is not set aside is the latest.
inline Outcome outcome_of(const CheckpointManager& manager,
                          std::span<const std::vector<HostTensor>> models) {
  Outcome outcome;
  std::int64_t newest = -1;
  for (const Step& step : manager.steps()) {
    EXPECT_TRUE(verify_checkpoint(step.directory, {.threads = 1}).ok()) << step.directory;
    const CheckpointReader reader(step.directory, {.threads = 1});
    const auto found =
        std::find_if(models.begin(), models.end(),
                     [&](const std::vector<HostTensor>& model) { return holds(reader, model); });
    const bool known = found != models.end();
    outcome[step.step] = known ? static_cast<std::uint64_t>(found - models.begin()) + 1 : 0;
    if (step.is_set_aside) {
      outcome[step.step] += kAside;
    } else {
      newest = step.step;
    }
  }
  for (const NamedStep& named : manager.pins().list()) {
    EXPECT_TRUE(outcome.contains(named.step)) << named.name;
    outcome[named.step] += kPinned;
  }
  const std::optional<LatestStep> latest = manager.latest();
  EXPECT_EQ(latest.has_value(), !outcome.empty());
  if (latest) {
    EXPECT_EQ(latest->step.step, newest);
    EXPECT_THAT(latest->rejected, testing::IsEmpty());
  }
  return outcome;
}

/// Expects one directory per step in the root, perhaps with what its save did, the names of steps,
/// and nothing else.
inline void expect_clean(const CheckpointManager& manager, const std::filesystem::path& root) {
  std::vector<std::string> steps, names;
  for (const Step& step : manager.steps()) {
    steps.push_back(step.directory.string());
    const auto stats = root / ("stats-" + step.directory.filename().string() + ".json");
    if (std::filesystem::exists(stats)) steps.push_back(stats.string());
    if (step.is_set_aside) {
      steps.push_back((root / (".aside-" + step.directory.filename().string())).string());
    }
  }
  for (const NamedStep& named : manager.pins().list()) {
    steps.push_back((root / (".named-" + named.name)).string());
  }
  for (const auto& entry : std::filesystem::directory_iterator(root)) {
    const bool is_lease = entry.path().filename().string().starts_with(".writer.");
    if (!is_lease) names.push_back(entry.path().string());  // of a manager that is not closed
  }
  EXPECT_THAT(names, testing::UnorderedElementsAreArray(steps));
}

}  // namespace shardwise
