// Every outcome of every request of a save, a removal and a collection, the writer killed at each
// request or paused there: docs/object_stores.md, heading "Request by request".

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "shardwise/bucket/detail/bucket_root.h"
#include "shardwise/checkpoint/detail/format/manifest.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"
#include "shardwise/storage/object/object_store.h"
#include "testing/memory_bucket.h"

namespace shardwise::bucket_detail {
namespace {

using detail::StepName;

constexpr std::int64_t kClaimSeconds = 1000;
constexpr int kAtTheEnd = 1'000'000;

struct Killed {};

/// The faults of one run.
struct Plan {
  std::map<int, MemoryBucket::Fault> faults = {};  ///< by the number of the request
  int killed = -1;  ///< the writer is killed before its request of this number
  int paused = -1;  ///< the writer sleeps there, until after a collection
};

std::string id_of(char letter) { return std::string(32, letter); }

/// The objects of an attempt hold its id, so that no other's can pass for them.
std::map<std::string, std::string> data_of(const std::string& id) {
  return {{"a.h5", "a " + id}, {"b.h5", "b " + std::string(60, '.') + id}};
}

std::string manifest_of(const std::string& id) { return "{\"id\":\"" + id + "\"}"; }

/// Keys and open uploads that no step leads to.
std::size_t leftovers_in(const MemoryBucket& bucket) {
  std::size_t leftovers = bucket.open_uploads();
  const std::map<std::string, std::string> objects = bucket.objects();
  for (const auto& [key, text] : objects) {
    const std::string manifest = key.substr(0, key.rfind('/') + 1) + "manifest.json";
    const auto at = objects.find(manifest);
    const bool is_live = at != objects.end() && at->second.starts_with('{');
    if (key != manifest && !is_live && key != "runs/.shardwise-root") ++leftovers;
  }
  return leftovers;
}

/// One bucket and what happens to it.
class Run {
 public:
  explicit Run(const Plan& plan) : plan_(plan) {
    save(1, id_of('a'));
    start_ = requests_;
    bucket_->fault = [this](int number) { return before(number); };
    bucket_->changed = [this] { check_instant(); };
  }

  /// A job saves step 2 and then removes step 1; another starts after it.
  void play() {
    try {
      save(2, id_of('b'));
      has_saved_ = true;
      root().remove({.step = 1});
      has_removed_ = true;
    } catch (const Killed&) {
    } catch (const Error&) {
    }
    is_writer_ = false;
    writer_requests_ = requests_ - start_;
    collect();
    bucket_->deliver();
    bucket_->fault = nullptr;
    collect();
    check_end();
  }

  int writer_requests() const { return writer_requests_; }
  int all_requests() const { return requests_ - start_; }

 private:
  BucketRoot root() {
    return {std::make_shared<ObjectStore>(bucket_, RetryOptions{.tries = 3, .wait = [](auto) {}}),
            "runs", 1};
  }

  void save(std::int64_t step, const std::string& id) {
    BucketRoot bucket = root();
    if (!bucket_->fault) {
      bucket_->fault = [this](int) { return ++requests_, MemoryBucket::Fault{}; };
    }
    const StepName name =
        bucket.claim(step, {.id = id, .manifest_hash = id, .seconds = kClaimSeconds});
    for (const auto& [file, text] : data_of(id)) {
      const auto read = [&bytes = text](std::uint64_t offset, std::span<std::byte> into) {
        std::memcpy(into.data(), bytes.data() + offset, into.size());
      };
      bucket.store().upload(bucket.prefix(name) + file, text.size(), read, 50, 1);
    }
    bucket.commit(name, manifest_of(id));
  }

  void collect() {
    bucket_->now += 2 * 86'400;
    try {
      root().collect_garbage();
    } catch (const Error&) {  // a fault; the next one goes on
    }
  }

  MemoryBucket::Fault before(int) {
    const int number = requests_++ - start_;
    if (is_writer_ && number == plan_.killed) throw Killed();
    if (is_writer_ && number == plan_.paused) {
      is_writer_ = false;
      collect();
      is_writer_ = true;
    }
    const auto fault = plan_.faults.find(number);
    return fault == plan_.faults.end() ? MemoryBucket::Fault{} : fault->second;
  }

  // A step is whole or not there, and has no byte of another attempt, whenever somebody looks.
  void check_instant() {
    const std::map<std::string, std::string> objects = bucket_->objects();
    for (const auto& [key, text] : objects) {
      if (!key.ends_with("manifest.json") || !text.starts_with('{')) continue;
      const std::string prefix = key.substr(0, key.rfind('/') + 1);
      for (const auto& [file, wanted] : data_of(text.substr(7, 32))) {
        const auto at = objects.find(prefix + file);
        if (at == objects.end() || at->second != wanted) ++broken_;
      }
    }
  }

  void check_end() {
    check_instant();
    EXPECT_EQ(broken_, 0) << "a step was seen that is not whole";
    std::set<std::int64_t> steps;
    for (const StepName& name : root().committed()) steps.insert(name.step);
    EXPECT_TRUE(!has_saved_ || steps.contains(2)) << "a step is lost that save() returned";
    EXPECT_TRUE(has_saved_ || steps.contains(1)) << "the older step is lost";
    EXPECT_TRUE(!has_removed_ || !steps.contains(1)) << "a removed step is there";
    EXPECT_EQ(leftovers_in(*bucket_), 0u) << "keys or uploads are left that nothing leads to";
    save(2, id_of('c'));
    EXPECT_EQ(root().committed().back().step, 2) << "the next save of the step";
  }

  const Plan& plan_;
  const std::shared_ptr<MemoryBucket> bucket_ = std::make_shared<MemoryBucket>();
  int requests_ = 0, start_ = 0, writer_requests_ = 0, broken_ = 0;
  bool is_writer_ = true, has_saved_ = false, has_removed_ = false;
};

/// The same for the saves of a CheckpointManager: step 2, after which retention removes step 1. A
/// writer that is killed sends no more requests.
class ManagerRun {
 public:
  explicit ManagerRun(const Plan& plan) : plan_(plan) {
    use_object_client("memory", bucket_, {.tries = 3, .wait = [](auto) {}});
    save(1);
    bucket_->fault = [this](int) { return before(requests_++); };
    bucket_->changed = [this] { check_instant(); };
  }
  ~ManagerRun() { use_object_client("memory", nullptr); }

  /// Returns how many requests the writer sent.
  int play() {
    SaveStats stats;
    try {
      stats = save(2);
      has_saved_ = true;
    } catch (const Error&) {
    }
    is_writer_ = false;
    const int requests = requests_;
    collect();
    bucket_->deliver();
    bucket_->fault = nullptr;
    collect();
    EXPECT_EQ(broken_, 0) << "a step was seen that is not whole";
    EXPECT_EQ(leftovers_in(*bucket_), 0u) << "keys or uploads are left that nothing leads to";
    const CheckpointManager manager(kRoot, {.collect_garbage = false});
    EXPECT_TRUE(!has_saved_ || value() == 2) << "a step is lost that save() returned";
    const bool has_first = manager.steps().front().step == 1;
    EXPECT_TRUE(!has_saved_ || !has_first || !stats.cleanup_error.empty())
        << "a removed one is there";
    for (const Step& step : manager.steps()) EXPECT_TRUE(verify_checkpoint(step.directory).ok());
    save(3);
    EXPECT_EQ(value(), 3) << "the next save";
    return requests;
  }

 private:
  static constexpr const char* kRoot = "s3://memory/runs";

  static SaveStats save(std::int64_t step) {
    CheckpointManager manager(
        kRoot, {.keep = {.last = 1}, .write = {.stats = false}, .collect_garbage = false});
    const std::vector<std::int64_t> values(1'000, step);
    return manager.save(step, {host_source("w", values)});
  }

  static std::int64_t value() {
    std::vector<std::int64_t> values(1'000);
    CheckpointManager(kRoot, {.collect_garbage = false})
        .restore_latest([&](const CheckpointReader& reader) { reader.read("w", values); });
    return values.back();
  }

  void collect() {
    bucket_->now += 2 * 86'400;
    try {
      const auto store =
          std::make_shared<ObjectStore>(bucket_, RetryOptions{.tries = 3, .wait = [](auto) {}});
      BucketRoot(store, "runs", 1).collect_garbage();
    } catch (const Error&) {  // a fault; the next one goes on
    }
  }

  MemoryBucket::Fault before(int number) {
    if (is_writer_ && plan_.killed >= 0 && number >= plan_.killed) {
      throw Error(ErrorCode::io, "the writer was killed");
    }
    if (is_writer_ && number == plan_.paused) {
      is_writer_ = false;
      collect();
      is_writer_ = true;
    }
    const auto fault = plan_.faults.find(number);
    return fault == plan_.faults.end() ? MemoryBucket::Fault{} : fault->second;
  }

  void check_instant() {
    const std::map<std::string, std::string> objects = bucket_->objects();
    for (const auto& [key, text] : objects) {
      if (!key.ends_with("manifest.json") || !text.starts_with('{')) continue;
      const std::string prefix = key.substr(0, key.rfind('/') + 1);
      const detail::Manifest manifest = detail::parse_manifest(text, key);
      for (const detail::FileEntry& file : manifest.files) {
        const auto at = objects.find(prefix + file.name);
        if (at == objects.end() || at->second.size() != file.bytes) ++broken_;
      }
    }
  }

  const Plan& plan_;
  const std::shared_ptr<MemoryBucket> bucket_ = std::make_shared<MemoryBucket>();
  int requests_ = 0, broken_ = 0;
  bool is_writer_ = true, has_saved_ = false;
};

std::vector<MemoryBucket::Fault> all_faults() {
  std::vector<MemoryBucket::Fault> faults = {{RequestFault::lost},
                                             {RequestFault::unanswered},
                                             {RequestFault::twice},
                                             {RequestFault::refused}};
  for (const int delay : {1, 2, 3, 5, 8, 13, 21, kAtTheEnd}) {
    faults.push_back({RequestFault::late, delay});
  }
  return faults;
}

std::string to_string(const Plan& plan) {
  std::string text =
      "killed " + std::to_string(plan.killed) + ", paused " + std::to_string(plan.paused);
  for (const auto& [number, fault] : plan.faults) {
    text += ", request " + std::to_string(number) + ": " +
            std::to_string(static_cast<int>(fault.kind)) + " " + std::to_string(fault.delay);
  }
  return text;
}

void play(const Plan& plan) {
  SCOPED_TRACE(to_string(plan));
  Run(plan).play();
}

struct Sizes {
  int writer, all;
};

Sizes sizes() {
  const Plan plan;
  Run run(plan);
  run.play();
  return {run.writer_requests(), run.all_requests()};
}

/// The writer goes on to its end, is killed before each of its requests, or is paused there.
void for_each_end(Plan plan, int requests, int& runs) {
  play(plan);
  for (int number = 0; number < requests; ++number) {
    plan.killed = number;
    play(plan);
    plan.killed = -1;
    plan.paused = number;
    play(plan);
    plan.paused = -1;
    runs += 2;
  }
  ++runs;
}

TEST(BucketFaults, AStepIsWholeOrNotThereWithAnyOneFault) {
  const auto [writer, all] = sizes();
  int runs = 0;
  for_each_end({}, writer, runs);
  for (int number = 0; number < all + 10 && !::testing::Test::HasFailure(); ++number) {
    for (const MemoryBucket::Fault& fault : all_faults()) {
      for_each_end({.faults = {{number, fault}}}, writer + 2, runs);
    }
  }
  std::printf("%d states of a bucket\n", runs);
  EXPECT_GT(runs, 10'000);
}

/// Plays each state with two faults for which is_played(number of the state).
void play_two_faults(const std::function<bool(int)>& is_played) {
  const auto [writer, all] = sizes();
  const std::vector<MemoryBucket::Fault> faults = all_faults();
  int states = 0, runs = 0;
  const auto play_each_end = [&](Plan plan) {
    const auto one = [&] {
      if (!is_played(states++)) return;
      play(plan);
      ++runs;
    };
    one();
    for (int number = 0; number < writer + 2; ++number) {
      plan.killed = number;
      one();
      plan.killed = -1;
      plan.paused = number;
      one();
      plan.paused = -1;
    }
  };
  for (int first = 0; first < all; ++first) {
    for (int second = first + 1; second < all + 10; ++second) {
      for (const MemoryBucket::Fault& fault : faults) {
        for (const MemoryBucket::Fault& other : faults) {
          if (::testing::Test::HasFailure()) return;
          play_each_end({.faults = {{first, fault}, {second, other}}});
        }
      }
    }
  }
  std::printf("%d of %d states of a bucket with two faults\n", runs, states);
  EXPECT_GT(states, 1'000'000);
  EXPECT_GT(runs, 1'000);
}

TEST(BucketFaults, AStepIsWholeOrNotThereWithSomeTwoFaults) {
  play_two_faults([](int state) { return state % 499 == 0; });
}

TEST(BucketFaultsNightly, AStepIsWholeOrNotThereWithAnyTwoFaults) {
  play_two_faults([](int) { return true; });
}

TEST(BucketFaults, AManagersStepIsWholeOrNotThereWithAnyOneFault) {
  const auto run = [](const Plan& plan) {
    SCOPED_TRACE(to_string(plan));
    return ManagerRun(plan).play();
  };
  const int requests = run({});
  std::printf("%d requests of a manager\n", requests);
  EXPECT_GT(requests, 8);
  for (int number = 0; number < requests + 5 && !::testing::Test::HasFailure(); ++number) {
    run({.killed = number});
    run({.paused = number});
    for (const MemoryBucket::Fault& fault : all_faults()) {
      run({.faults = {{number, fault}}});
      run({.faults = {{number, fault}}, .killed = number + 1});
    }
  }
}

}  // namespace
}  // namespace shardwise::bucket_detail
