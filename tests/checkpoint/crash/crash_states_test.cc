// Every state that a power loss can leave, made from a journal of file operations and opened.

#include "testing/crash_states.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <span>
#include <unordered_set>

#include "shardwise/checkpoint/detail/root/failures.h"
#include "shardwise/checkpoint/detail/root/marks/lease.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/detail/internals.h"
#include "shardwise/jobs/detail/manager_impl.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "testing/fault_model.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/journal_file_system.h"
#include "testing/root_outcome.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

// Chunked and compressed, contiguous, a scalar.
std::vector<HostTensor> small_model(std::uint64_t seed) {
  return {host_tensor("ramp", DType::i32, {128, 128}, "", "-,-", Values::ramp, seed),
          host_tensor("w/noise", DType::f32, {40, 50}, "2", "0,-", Values::noise, seed),
          host_tensor("step", DType::i64, {}, "2", "", Values::ramp, seed)};
}

std::vector<HostTensor> large_model(std::uint64_t seed) {
  std::vector<HostTensor> tensors = small_model(seed);
  tensors.push_back(host_tensor("x", DType::f32, {1024, 700}, "2,2", "0,1", Values::noise, seed));
  tensors.push_back(host_tensor("y", DType::i32, {512, 1024}, "2,2", "1,0", Values::ramp, seed));
  return tensors;
}

// An action on a root and its legal states. Says what went wrong after a commit.
struct Action {
  std::function<std::string(const std::filesystem::path& root, std::shared_ptr<FileSystem>)> run;
  std::vector<Outcome> legal;  // the last is the state when the action has returned
};

struct Scenario {
  const char* name;
  std::vector<Action> before;  // all of it on the disk
  std::vector<Action> actions;

  // How many states there are to be looked at, about a tenth less than there are where no file can
  // be reused: fewer, and the journal has lost operations. With all syncs, and with those of the
  // root failing.
  std::size_t least_states = 0, least_unsynced_states = 0;

  Outcome outcome_before() const { return before.empty() ? Outcome{} : before.back().legal.back(); }
};

void PrintTo(const Scenario& scenario, std::ostream* out) { *out << scenario.name; }

std::vector<std::filesystem::path> directories_of(const CheckpointManager& manager) {
  std::vector<std::filesystem::path> directories;
  for (const Step& step : manager.steps()) directories.push_back(step.directory);
  return directories;
}

/// Plays scenarios, and looks at the states they can leave. Immutable.
class Machine {
 public:
  Machine(std::vector<HostTensor> (*make)(std::uint64_t), Codec codec)
      : codec_(codec), models_{make(1), make(2), make(3), make(4)} {}

  const std::vector<HostTensor>& model(std::uint64_t seed) const { return models_[seed - 1]; }

  Action save(std::int64_t step, std::uint64_t seed, std::vector<Outcome> legal,
              ManagerOptions rules = {}, const Metrics& metrics = {}) const {
    rules.write.stats = false;  // not synced: it would only multiply the states
    rules.write.threads = 1;
    return {[=, this](const std::filesystem::path& root, std::shared_ptr<FileSystem> files) {
              ManagerOptions options = rules;
              options.file_system = std::move(files);
              return CheckpointManager(root, std::move(options))
                  .save(step, sources_of(model(seed)),
                        {.codec = codec_, .metrics = metrics, .existing = Existing::replace})
                  .cleanup_error;
            },
            std::move(legal)};
  }

  static Action pin(std::int64_t step, std::vector<Outcome> legal) {
    return {[=](const std::filesystem::path& root, std::shared_ptr<FileSystem> files) {
              CheckpointManager(root, {.write = {.threads = 1}, .file_system = std::move(files)})
                  .pins()
                  .add(step, "good");
              return std::string();
            },
            std::move(legal)};
  }

  // Retention, as after a commit.
  static Action retire(const ManagerOptions& rules, std::vector<Outcome> legal) {
    return {[=](const std::filesystem::path& root, std::shared_ptr<FileSystem> files) {
              ManagerOptions options = rules;
              options.write.threads = 1;
              options.file_system = std::move(files);
              CheckpointManager manager(root, std::move(options));
              detail::Failures failures;
              jobs_detail::ManagerInternals::impl(manager).keeper.remove_superseded({}, nullptr,
                                                                                    failures);
              failures.rethrow_first();
              return std::string();
            },
            std::move(legal)};
  }

  static Action unpin(std::vector<Outcome> legal) {
    return {[=](const std::filesystem::path& root, std::shared_ptr<FileSystem> files) {
              CheckpointManager(root, {.write = {.threads = 1}, .file_system = std::move(files)})
                  .pins()
                  .remove("good");
              return std::string();
            },
            std::move(legal)};
  }

  // Two saves, one checkpoint being kept, by one manager, which then ends: the second one writes in
  // the files of the step that the first one removed.
  std::vector<Action> save_and_reuse(std::int64_t step, std::uint64_t seed,
                                     std::vector<Outcome> legal, std::uint64_t next_seed,
                                     std::vector<Outcome> next_legal) const {
    const auto kept = std::make_shared<std::optional<CheckpointManager>>();
    const auto save = [=, this](std::int64_t saved, std::uint64_t from) {
      return (*kept)->save(saved, sources_of(model(from)), {.codec = codec_}).cleanup_error;
    };
    return {{[=](const std::filesystem::path& root, std::shared_ptr<FileSystem> files) {
               kept->emplace(root, ManagerOptions{.keep = {.last = 1},
                                                  .write = {.stats = false, .threads = 1},
                                                  .file_system = files});
               return save(step, seed);
             },
             std::move(legal)},
            {[=](const std::filesystem::path&, const std::shared_ptr<FileSystem>&) {
               std::string error = save(step + 1, next_seed);
               kept->reset();
               return error;
             },
             std::move(next_legal)}};
  }

  static Action remove(std::int64_t step, std::vector<Outcome> legal) {
    return {[=](const std::filesystem::path& root, std::shared_ptr<FileSystem> files) {
              CheckpointManager(root, {.write = {.threads = 1}, .file_system = std::move(files)})
                  .remove(step);
              return std::string();
            },
            std::move(legal)};
  }

  // The clean-up of a start, the machine going on.
  static Action start_again(std::vector<Outcome> legal) {
    return {[](const std::filesystem::path& root, std::shared_ptr<FileSystem> files) {
              CheckpointManager manager(root, {.write = {.threads = 1},
                                               .collect_garbage = false,
                                               .file_system = std::move(files)});
              manager.collect_garbage();
              return std::string();
            },
            std::move(legal)};
  }

  // Starts after a power loss: each checkpoint is old or new and whole, clean-up leaves nothing
  // else, and a further save works.
  void start_up(const DiskState& state, const std::vector<Outcome>& legal) const {
    const TempDir disk(states_folder());
    write_state(state, disk.path());
    const auto root = disk / "runs/root";
    try {
      const CheckpointManager reader(root, {.write = {.threads = 1}, .collect_garbage = false});
      const Outcome found = outcome_of(reader, models_);
      EXPECT_THAT(legal, testing::Contains(found));
      const std::vector<std::filesystem::path> directories = directories_of(reader);
      CheckpointManager manager(root, {.write = {.threads = 1}});
      expect_clean(manager, root);
      EXPECT_EQ(directories_of(manager), directories);
      manager.save(99, sources_of(model(4)), {.codec = codec_});
      EXPECT_EQ(manager.latest()->step.step, 99);
      EXPECT_TRUE(holds(CheckpointReader(manager.step(99).directory, {.threads = 1}), model(4)));
      EXPECT_EQ(manager.steps().size(), found.size() + 1);
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
    if (testing::Test::HasFailure()) {
      for (const auto& [path, content] : state) std::cout << "  " << path << '\n';
    }
  }

  // The journal of a scenario, the state before it, and where its actions end.
  struct Played {
    std::optional<CrashModel> before;
    std::vector<Change> changes;
    std::vector<std::size_t> ends;
  };

  Played play(const Scenario& scenario) const {
    const TempDir dir;
    const auto root = dir / "runs/root";
    for (const Action& action : scenario.before) action.run(root, posix_file_system());
    Played played;
    played.before.emplace(dir.path());
    const auto files = std::make_shared<JournalFileSystem>(dir.path());
    for (const Action& action : scenario.actions) {
      EXPECT_EQ(action.run(root, files), "");
      played.ends.push_back(files->changes().size());
    }
    played.changes = files->changes();
    for (Change& change : played.changes) forget_boot(change);
    return played;
  }

  // Which syncs of the root fail: one, counted from 1 (0: none), or all from it on, which ends
  // before the next start or does not.
  struct SyncFault {
    std::size_t at = 0;
    enum { once, until_start, for_good } lasts = once;
  };

  // A journal of actions, some of whose last one's syncs of the root fail, and of the start after
  // them.
  struct PlayedUnsynced {
    Played played;
    std::size_t root_syncs = 0;  // of the last action
    std::size_t failed_at = 0;   // operations before the first one that failed
    std::vector<std::optional<Outcome>>
        certain;  // at each end: the state of the disk, if it is known
  };

  PlayedUnsynced play_unsynced(const Scenario& scenario, const SyncFault& fault) const {
    const TempDir dir;
    const auto root = dir / "runs/root";
    for (const Action& action : scenario.before) action.run(root, posix_file_system());
    PlayedUnsynced result;
    result.played.before.emplace(dir.path());
    const auto journal = std::make_shared<JournalFileSystem>(dir.path());
    std::size_t syncs = 0;
    bool armed = false, started = false, unsynced = false;
    const auto fail = [&](std::string_view operation, const std::filesystem::path& path) {
      if (!armed || operation != "sync directory" || path != root) return;
      const bool first = ++syncs == fault.at;
      const bool later = fault.at != 0 && syncs > fault.at &&
                         (fault.lasts == SyncFault::for_good ||
                          (fault.lasts == SyncFault::until_start && !started));
      if (first) result.failed_at = journal->changes().size();
      unsynced = first || later;
      if (unsynced) throw Error(ErrorCode::io, "injected: sync directory fails");
    };
    const auto files = std::make_shared<HookedFileSystem>(fail, nullptr, journal);
    for (std::size_t i = 0; i + 1 < scenario.actions.size(); ++i) {
      EXPECT_EQ(scenario.actions[i].run(root, files), "");
    }
    armed = true;
    for (const Action& action : {scenario.actions.back(), start_again({})}) {
      std::string error;
      try {
        error = action.run(root, files);
      } catch (const Error& e) {
        error = e.what();
      }
      if (!started) {
        EXPECT_EQ(error.find("injected") != std::string::npos, fault.at != 0) << error;
        result.root_syncs = syncs;
      }
      started = true;
      result.played.ends.push_back(journal->changes().size());
      const CheckpointManager manager(root, {.write = {.threads = 1}, .collect_garbage = false});
      const Outcome now = outcome_of(manager, models_);
      result.certain.push_back(unsynced ? std::nullopt : std::optional(now));
      if (result.certain.size() == 2 && !unsynced) expect_clean(manager, root);
    }
    result.played.changes = journal->changes();
    for (Change& change : result.played.changes) forget_boot(change);
    return result;
  }

  // The states that may be found if the power goes before change number `at`.
  static std::vector<Outcome> legal_at(const Scenario& scenario, const Played& played,
                                       std::size_t at) {
    Outcome before = scenario.outcome_before();
    for (std::size_t i = 0; i < played.ends.size(); ++i) {
      std::vector<Outcome> legal = scenario.actions[i].legal;
      if (at == played.ends[i]) return {legal.back()};
      if (at < played.ends[i]) {
        legal.push_back(std::move(before));
        return legal;
      }
      before = std::move(legal.back());
    }
    return {before};
  }

 private:
  // In memory where there is such a folder: no state need outlive the test.
  static std::filesystem::path states_folder() {
    const std::filesystem::path memory = "/dev/shm";
    return ::access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::temp_directory_path();
  }

  // The machine has been started again since: this process is not the one that wrote the lease.
  static void forget_boot(Change& change) {
    if (change.kind != ChangeKind::write || change.path.find(".lease") == std::string::npos) return;
    static const std::string boot = detail::this_process().boot;
    const auto view = std::as_bytes(std::span(boot));
    const auto found =
        std::search(change.bytes.begin(), change.bytes.end(), view.begin(), view.end());
    if (change.bytes.size() < boot.size()) return;  // the number of a step that gets a name
    ASSERT_NE(found, change.bytes.end());
    std::fill_n(found, boot.size(), std::byte{'0'});
  }

  Codec codec_;
  std::vector<HostTensor> models_[4];
};

const Machine& small_machine() {
  static const Machine machine(small_model, Codec::zstd);
  return machine;
}

// A root that a process has died in again and again: attempts, leases, trash, and a step that was
// replaced and not removed.
void leave_everything(const std::filesystem::path& root) {
  leave_garbage(root);
  const auto no_trash = std::make_shared<HookedFileSystem>(
      [&](std::string_view operation, const std::filesystem::path& path) {
        if (operation == "rename" && path.filename() == "step-00000002") {
          throw Error(ErrorCode::io, "the process dies here");
        }
      });
  CheckpointManager manager(
      root,
      {.write = {.stats = false, .threads = 1}, .collect_garbage = false, .file_system = no_trash});
  const SaveStats stats = manager.save(2, sources_of(small_machine().model(3)),
                                       {.codec = Codec::zstd, .existing = Existing::replace});
  EXPECT_NE(stats.cleanup_error, "");
}

std::vector<Scenario> scenarios() {
  const Machine& machine = small_machine();
  static const Machine raw(small_model, Codec::none);  // most of whose bytes are a chunk
  const Outcome first{{1, 1}}, both{{1, 1}, {2, 2}}, replaced{{1, 1}, {2, 3}};
  const Action save_1 = machine.save(1, 1, {first}), save_2 = machine.save(2, 2, {both});
  const Action leave{[](const auto& root, const auto&) {
                       leave_everything(root);
                       return std::string();
                     },
                     {replaced}};
  const Action start = Machine::start_again({replaced});
  const Outcome pinned{{1, 1 + kPinned}, {2, 2}};
  // Step 1 is the oldest, 2 the best, 3 divides, 4 has a name, 7 is the newest, and nothing
  // keeps 5.
  const ManagerOptions rules{.keep = {.every = 3,
                                      .interval = std::chrono::hours(24 * 365),
                                      .best = BestSteps{.metric = "loss"}}};
  std::vector<Action> ruled;
  Outcome all;
  for (const auto& [step, loss] :
       std::map<std::int64_t, double>{{1, 3}, {2, 1}, {3, 2}, {4, 3}, {5, 4}, {7, 5}}) {
    const auto seed = static_cast<std::uint64_t>(1 + step % 3);
    all[step] = seed;
    ruled.push_back(machine.save(step, seed, {all}, {}, {{"loss", loss}}));
  }
  all[4] += kPinned;
  ruled.push_back(Machine::pin(4, {all}));
  Outcome without_5 = all;
  without_5.erase(5);
  const std::vector<Outcome> retained{{{1, 1}, {2, 2}, {3, 3}}, {{2, 2}, {3, 3}}, {{3, 3}}};
  return {
      {"FirstSave", {}, {save_1}, 440, 50},
      {"SecondSave", {save_1}, {save_2}, 440, 50},
      {"Replace", {save_1, save_2}, {machine.save(2, 3, {replaced})}, 440, 75},
      {"Remove", {save_1, save_2}, {Machine::remove(2, {first})}, 11, 22},
      {"Retention",
       {save_1, save_2},
       {machine.save(3, 3, retained, {.keep = {.last = 1}})},
       460,
       140},
      {"Reuse",
       {save_1},
       machine.save_and_reuse(2, 2, {both, {{2, 2}}}, 3, {{{2, 2}, {3, 3}}, {{3, 3}}}),
       900,
       220},
      {"StartUp", {save_1, save_2, leave}, {start}, 190, 800},
      {"Increment",
       {raw.save(1, 1, {first})},
       {raw.save(2, 1, {{{1, 1}, {2, 1}}, {{2, 1}}}, {.keep = {.last = 1}})},
       1200,
       110},
      {"Pin",
       {save_1, save_2},
       {Machine::pin(1, {pinned}), Machine::pin(2, {both, {{1, 1}, {2, 2 + kPinned}}})},
       10,
       16},
      {"Unpin", {save_1, save_2, Machine::pin(1, {pinned})}, {Machine::unpin({both})}, 3, 5},
      {"GoBack",
       {save_1, save_2},
       {machine.save(0, 3,
                     {{{0, 3}, {1, 1}, {2, 2}},
                      {{0, 3}, {1, 1 + kAside}, {2, 2}},
                      {{0, 3}, {1, 1 + kAside}, {2, 2 + kAside}}},
                     {.keep = {.last = 1}})},
       600,
       60},
      {"RetentionByRules", ruled, {Machine::retire(rules, {without_5})}, 10, 36},
  };
}

// As long as nothing is synced, a further operation only adds states. So those just before each
// sync, and those at the end, are all there are.
bool has_most_states(const std::vector<Change>& changes, std::size_t at) {
  return at == changes.size() || changes[at].kind == ChangeKind::sync ||
         changes[at].kind == ChangeKind::sync_directory;
}

class CrashStates : public testing::TestWithParam<Scenario> {};

TEST_P(CrashStates, EveryOneIsOldOrNew) {
  const Scenario& scenario = GetParam();
  Machine::Played played = small_machine().play(scenario);
  std::unordered_set<std::string> seen;
  std::size_t ways = 0, states = 0, instants = 0;
  for (std::size_t at = 0; at <= played.changes.size(); ++at) {
    const bool end = at == played.changes.size();
    if (has_most_states(played.changes, at)) {
      // A save that has returned must be there, so the last states are looked at once more.
      if (end) seen.clear();
      ++instants;
      const std::vector<Outcome> legal = Machine::legal_at(scenario, played, at);
      ways += played.before->for_each_state([&](const DiskState& state) {
        if (HasFailure() || !seen.insert(fingerprint(state)).second) return;
        ++states;
        SCOPED_TRACE(testing::Message() << "the power goes before operation " << at << " of "
                                        << played.changes.size());
        small_machine().start_up(state, legal);
      });
    }
    if (!end) played.before->apply(played.changes[at]);
  }
  std::cout << ways << " ways to " << states << " states of the disk at " << instants
            << " instants\n";
  EXPECT_GE(states, scenario.least_states);
  if (std::string_view(scenario.name) == "Increment") {
    EXPECT_TRUE(std::any_of(played.changes.begin(), played.changes.end(),
                            [](const Change& c) { return c.kind == ChangeKind::link; }));
  }
  if (std::string_view(scenario.name) == "Reuse") {
    const TempDir dir;
    write_file(dir / "probe", "x");
    const bool can = posix_file_system()->reuse(dir / "probe", Caching::cached) != nullptr;
    EXPECT_EQ(can, std::any_of(played.changes.begin(), played.changes.end(), [](const Change& c) {
                return c.kind == ChangeKind::reuse && c.path.find(".tmp/") != std::string::npos;
              }));
  }
}

INSTANTIATE_TEST_SUITE_P(All, CrashStates, testing::ValuesIn(scenarios()),
                         [](const auto& test) { return std::string(test.param.name); });

// A sync of the root fails, and the change before it is undone or left: if the power goes then, or
// during the clean-up of the next start, which may not be able to sync it either, each checkpoint
// is there, whole, or not there.
TEST_P(CrashStates, EveryOneIsOldOrNewAfterAFailedSyncOfTheRoot) {
  const Scenario& scenario = GetParam();
  using SyncFault = Machine::SyncFault;
  const std::size_t syncs = small_machine().play_unsynced(scenario, {}).root_syncs;
  std::vector<Outcome> any = scenario.actions.back().legal;
  any.push_back(scenario.actions.size() == 1 ? scenario.outcome_before()
                                             : scenario.actions.rbegin()[1].legal.back());
  std::size_t states = 0, instants = 0;
  for (std::size_t fault = 1; fault <= syncs; ++fault) {
    for (const auto lasts : {SyncFault::once, SyncFault::until_start, SyncFault::for_good}) {
      Machine::PlayedUnsynced unsynced = small_machine().play_unsynced(scenario, {fault, lasts});
      Machine::Played& played = unsynced.played;
      std::unordered_set<std::string> seen;
      for (std::size_t at = 0; at <= played.changes.size(); ++at) {
        const auto end = std::find(played.ends.begin(), played.ends.end(), at);
        const bool ended = end != played.ends.end();
        if (at >= unsynced.failed_at && (ended || has_most_states(played.changes, at))) {
          std::optional<Outcome> certain;
          if (ended)
            certain = unsynced.certain[static_cast<std::size_t>(end - played.ends.begin())];
          if (certain) seen.clear();
          ++instants;
          played.before->for_each_state([&](const DiskState& state) {
            if (HasFailure() || !seen.insert(fingerprint(state)).second) return;
            ++states;
            SCOPED_TRACE(testing::Message()
                         << "sync " << fault << " of " << syncs << " fails, lasting " << lasts
                         << "; the power goes before operation " << at << " of "
                         << played.changes.size());
            small_machine().start_up(state, certain ? std::vector{*certain} : any);
          });
        }
        if (at < played.changes.size()) played.before->apply(played.changes[at]);
      }
    }
  }
  std::cout << states << " states of the disk at " << instants << " instants\n";
  EXPECT_GE(states, scenario.least_unsynced_states);
}

// One save after another, on a root that nobody syncs in between: what one has not synced is still
// open when the next begins.
void look_at_samples(Codec codec, std::size_t count) {
  const Machine machine(large_model, codec);
  const Outcome first{{1, 1}}, both{{1, 1}, {2, 2}}, replaced{{1, 1}, {2, 3}}, second{{2, 3}};
  Scenario scenario{"All",
                    {},
                    {machine.save(1, 1, {first}), machine.save(2, 2, {both}),
                     machine.save(2, 3, {replaced}), Machine::remove(1, {second})},
                    std::min<std::size_t>(count / 4, 200)};
  for (Action& action : machine.save_and_reuse(3, 1, {{{2, 3}, {3, 1}}, {{3, 1}}}, 2,
                                               {{{3, 1}, {4, 2}}, {{4, 2}}})) {
    scenario.actions.push_back(std::move(action));
  }
  Machine::Played played = machine.play(scenario);
  std::mt19937_64 random(1);
  std::vector<std::size_t> instants;
  while (instants.size() < count) {
    const std::size_t at = random() % (played.changes.size() + 1);
    if (has_most_states(played.changes, at)) instants.push_back(at);
  }
  std::sort(instants.begin(), instants.end());
  std::unordered_set<std::string> seen;
  std::size_t now = 0;
  for (const std::size_t at : instants) {
    for (; now < at; ++now) played.before->apply(played.changes[now]);
    const DiskState state = played.before->random_state(random);
    seen.insert(fingerprint(state));
    SCOPED_TRACE(testing::Message()
                 << "the power goes before operation " << at << " of " << played.changes.size());
    machine.start_up(state, Machine::legal_at(scenario, played, at));
    if (testing::Test::HasFailure()) return;
  }
  std::cout << seen.size() << " states of the disk, of " << count << " samples over "
            << played.changes.size() << " instants\n";
  EXPECT_GE(seen.size(), scenario.least_states);
  EXPECT_GE(played.changes.size(), 115u) << "the journal has lost operations";
}

TEST(CrashStatesOfLargerCheckpoints, SampledRawAreOldOrNew) { look_at_samples(Codec::none, 80); }
TEST(CrashStatesOfLargerCheckpoints, SampledZstdAreOldOrNew) { look_at_samples(Codec::zstd, 80); }
TEST(CrashStatesNightly, SampledRawAreOldOrNew) { look_at_samples(Codec::none, 2000); }
TEST(CrashStatesNightly, SampledZstdAreOldOrNew) { look_at_samples(Codec::zstd, 2000); }

}  // namespace
}  // namespace shardwise
