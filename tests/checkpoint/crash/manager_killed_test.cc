// The process is killed at random instants of everything that changes a root, again and again on
// the same one.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "shardwise/jobs/manager.h"
#include "testing/fault_model.h"
#include "testing/root_outcome.h"
#include "testing/run_program.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

// An action on a root, and the states that it may hold until then; the last one is the final state.
struct Call {
  FaultAction action;
  std::int64_t step;
  std::uint64_t seed;
  std::vector<Outcome> legal;
};

// The steps that retention leaves, of those that there are.
bool is_kept(const Outcome& steps, std::int64_t step, FaultAction action) {
  const std::int64_t newest = steps.rbegin()->first;
  if (steps.at(step) >= kPinned || step == newest) return true;
  if (action != FaultAction::rules) return step == std::next(steps.rbegin())->first;
  const auto best = std::ranges::min_element(
      steps, {}, [](const auto& candidate) { return fault_loss(candidate.first); });
  return step % 4 == 0 || step == best->first;
}

Call random_call(const Outcome& now, std::int64_t newest, std::mt19937_64& random) {
  constexpr FaultAction actions[] = {
      FaultAction::save,  FaultAction::replace,   FaultAction::pin,  FaultAction::remove,
      FaultAction::rules, FaultAction::retention, FaultAction::reuse};
  const std::size_t kind = now.size() < 2 ? 0 : now.size() > 4 ? 3 + random() % 4 : random() % 7;
  Call call{.action = actions[kind], .step = newest + 1, .seed = 1 + random() % 3, .legal = {now}};
  Outcome next = now;
  if (now.empty()) {
    next[call.step] = call.seed;
    call.legal.push_back(next);
    return call;
  }
  auto any = std::next(now.begin(), static_cast<std::ptrdiff_t>(random() % now.size()));
  if (call.action == FaultAction::pin) {
    call.step = any->first;
    for (auto& [step, model] : next) model %= kPinned;
    call.legal.push_back(next);  // for a moment
    next[call.step] += kPinned;
    call.legal.push_back(next);
    return call;
  }
  if (call.action == FaultAction::remove) {
    while (any->second >= kPinned) any = any == now.begin() ? std::prev(now.end()) : std::prev(any);
    call.step = any->first;
    next.erase(call.step);
    call.legal.push_back(next);
    return call;
  }
  if (call.action == FaultAction::replace) {
    call.step = any->first;
    call.seed = 1 + any->second % kPinned % 3;  // another one
  }
  const auto save = [&](std::int64_t step) {
    const std::uint64_t name = next.contains(step) ? next[step] / kPinned * kPinned : 0;
    next[step] = name + call.seed;
    call.legal.push_back(next);
    if (call.action == FaultAction::save || call.action == FaultAction::replace) return;
    const Outcome all = next;
    for (const auto& [number, model] : all) {
      if (is_kept(all, number, call.action)) continue;
      next.erase(number);
      call.legal.push_back(next);
    }
  };
  if (call.action == FaultAction::reuse) save(call.step++);
  save(call.step);
  return call;
}

// Which of its operations, start-up's counted in, and how long after that one begins.
bool run_and_kill(const std::filesystem::path& root, const Call& call, std::mt19937_64& random) {
  const bool is_short = call.action == FaultAction::remove || call.action == FaultAction::pin;
  const bool retires = call.action == FaultAction::rules || call.action == FaultAction::retention;
  const std::uint64_t most = is_short                            ? 20
                             : call.action == FaultAction::reuse ? 130
                             : retires                           ? 120
                                                                 : 60;
  const std::uint64_t operation = 1 + random() % most;
  const std::uint64_t delay_us = random() % 2 == 0 ? 0 : random() % 3000;
  return ends_by_itself({SHARDWISE_FAULT_PROGRAM, root.string(),
                         std::to_string(static_cast<int>(call.action)), std::to_string(operation),
                         std::to_string(call.step), std::to_string(call.seed),
                         std::to_string(delay_us)});
}

void kill_at_random_instants(int wanted) {
  const TempDir root;
  const std::vector<HostTensor> models[] = {killed_model(1), killed_model(2), killed_model(3)};
  std::mt19937_64 random(1);
  Outcome now;
  std::int64_t newest = 0;
  int kills = 0, runs = 0, done_anyway = 0;
  std::map<FaultAction, int> kills_of;
  constexpr std::size_t kActions = 7;
  for (; (kills < wanted || kills_of.size() < kActions) && runs < 20 * wanted; ++runs) {
    const Call call = random_call(now, newest, random);
    SCOPED_TRACE(testing::Message() << "run " << runs << ": " << fault_action_name(call.action)
                                    << " step " << call.step);
    const bool ended = run_and_kill(root.path(), call, random);
    const CheckpointManager manager(root.path(),
                                    {.write = {.threads = 1}, .collect_garbage = false});
    const Outcome found = outcome_of(manager, models);
    if (ended) {
      EXPECT_EQ(found, call.legal.back());
    } else {
      EXPECT_THAT(call.legal, testing::Contains(found));
      ++kills;
      ++kills_of[call.action];
      if (found != now) ++done_anyway;
    }
    // Now and then the next process finds what several others have left.
    if (random() % 2 == 0) {
      const CheckpointManager cleaner(root.path(), {.write = {.threads = 1}});
      expect_clean(cleaner, root.path());
      EXPECT_EQ(cleaner.steps().size(), found.size());
    }
    if (testing::Test::HasFailure()) return;
    now = found;
    newest = std::max(newest, call.step);
  }
  EXPECT_GE(kills, wanted) << "of " << runs << " runs";
  EXPECT_EQ(kills_of.size(), kActions) << "of every action some";
  std::cout << kills << " kills in " << runs << " runs, " << done_anyway << " after a commit\n";
}

TEST(ManagerKilled, AtRandomInstants) { kill_at_random_instants(50); }

TEST(ManagerKilledNightly, AtRandomInstants) { kill_at_random_instants(1000); }

}  // namespace
}  // namespace shardwise
