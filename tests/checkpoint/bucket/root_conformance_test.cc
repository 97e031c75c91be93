// Every root of checkpoints keeps the contract of CheckpointManager. A new kind of root, or of file
// system below one, gets a line in kRoots.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "shardwise/bucket/bucket.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/forwarding_file_system.h"
#include "shardwise/storage/object/bucket_path.h"
#include "testing/errors.h"
#include "testing/journal_file_system.h"
#include "testing/memory_bucket.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A root that is empty at first.
class Root {
 public:
  virtual ~Root() = default;
  virtual fs::path path() const = 0;
  virtual std::shared_ptr<FileSystem> files() const { return nullptr; }
  virtual void remove_file(const fs::path& path) { fs::remove(path); }
};

class Folder final : public Root {
 public:
  using Make = std::function<std::shared_ptr<FileSystem>(const fs::path&)>;
  explicit Folder(const Make& make) : files_(make(dir_.path())) {}
  fs::path path() const override { return dir_.path() / "runs"; }
  std::shared_ptr<FileSystem> files() const override { return files_; }

 private:
  const TempDir dir_;
  const std::shared_ptr<FileSystem> files_;
};

class Bucket final : public Root {
 public:
  Bucket() {
    use_object_client("memory", bucket_, {.tries = 3, .wait = [](auto) {}});
  }
  ~Bucket() override { use_object_client("memory", nullptr); }
  fs::path path() const override { return "s3://memory/runs"; }
  void remove_file(const fs::path& path) override {
    bucket_->remove(path.string().substr(path.string().find("runs/")));
  }

 private:
  const std::shared_ptr<MemoryBucket> bucket_ = std::make_shared<MemoryBucket>();
};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Root>()> make;
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

Kind folder(const std::string& name, const Folder::Make& files) {
  return {name, [files] { return std::make_unique<Folder>(files); }};
}

const Kind kRoots[] = {
    folder("Posix", [](const fs::path&) { return posix_file_system(); }),
    folder("Forwarding", [](const fs::path&) { return std::make_shared<ForwardingFileSystem>(); }),
    folder("Journal",
           [](const fs::path& path) { return std::make_shared<JournalFileSystem>(path); }),
    {"Bucket", [] { return std::make_unique<Bucket>(); }},
};

std::vector<float> values(float first) {
  std::vector<float> all(10'000);
  std::iota(all.begin(), all.end(), first);
  return all;
}

SaveStats save(CheckpointManager& manager, std::int64_t step, float first,
               SaveOptions options = {}) {
  const std::vector<float> all = values(first);
  return manager.save(step, {host_source("w", all)}, std::move(options));
}

std::vector<float> read(const CheckpointReader& reader) {
  std::vector<float> all(10'000);
  reader.read("w", all);
  return all;
}

class RootConformance : public ::testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<CheckpointManager> manager(ManagerOptions options = {}) const {
    options.file_system = root_->files();
    options.warn = [this](const std::string& text) { warnings_.push_back(text); };
    return std::make_unique<CheckpointManager>(root_->path(), std::move(options));
  }

  std::vector<float> restored(const CheckpointManager& manager) const {
    std::vector<float> all;
    manager.restore_latest([&](const CheckpointReader& reader) { all = read(reader); });
    return all;
  }

  static std::vector<std::int64_t> steps(const CheckpointManager& manager) {
    std::vector<std::int64_t> numbers;
    for (const Step& step : manager.steps()) numbers.push_back(step.step);
    return numbers;
  }

  const std::unique_ptr<Root> root_ = GetParam().make();
  mutable std::vector<std::string> warnings_;
};

TEST_P(RootConformance, AStepIsThereOnceItsSaveReturns) {
  const auto first = manager();
  EXPECT_FALSE(first->latest());
  EXPECT_THAT(steps(*first), IsEmpty());
  for (const int step : {1, 3, 2}) {
    const SaveStats stats = save(*first, step, static_cast<float>(step));
    EXPECT_EQ(stats.directory, root_->path() / ("step-0000000" + std::to_string(step)));
    EXPECT_EQ(stats.cleanup_error, "");
    EXPECT_TRUE(verify_checkpoint(stats.directory).ok());
    EXPECT_EQ(read(CheckpointReader(stats.directory)), values(static_cast<float>(step)));
  }
  const auto second = manager();
  EXPECT_THAT(steps(*second), ElementsAre(1, 2, 3));
  EXPECT_EQ(second->latest()->step.step, 3);
  EXPECT_EQ(second->latest(3)->step.step, 2);
  EXPECT_EQ(restored(*second), values(3));
  EXPECT_EQ(second->step(2).directory, root_->path() / "step-00000002");
  message_of(ErrorCode::no_such_name, [&] { (void)second->step(4); });

  // And a step is a folder that a copy brings anywhere.
  const TempDir copy;
  copy_step(root_->path() / "step-00000003", copy.path());
  EXPECT_EQ(restored(CheckpointManager(copy.path())), values(3));
}

TEST_P(RootConformance, AStepThatIsThereIsRefusedSkippedOrReplaced) {
  const auto manager = this->manager();
  save(*manager, 1, 1);
  EXPECT_THAT(message_of(ErrorCode::already_exists, [&] { save(*manager, 1, 2); }),
              HasSubstr("step-00000001"));
  EXPECT_TRUE(save(*manager, 1, 2, {.existing = Existing::skip}).skipped);
  EXPECT_EQ(restored(*manager), values(1));
  EXPECT_EQ(save(*manager, 1, 2, {.existing = Existing::replace}).directory,
            root_->path() / "step-00000001.g2");
  EXPECT_EQ(restored(*manager), values(2));
  EXPECT_THAT(steps(*manager), ElementsAre(1));
}

TEST_P(RootConformance, ASaveThatFailsLeavesNothing) {
  const auto manager = this->manager();
  save(*manager, 1, 1);
  const TensorSource source = callback_tensor(
      "w", {DType::f32, {10'000}},
      [](const Box&, std::span<std::byte>) { throw Error(ErrorCode::io, "the tensor is gone"); });
  EXPECT_THAT(message_of(ErrorCode::io, [&] { manager->save(2, {source}); }),
              HasSubstr("the tensor is gone"));
  EXPECT_THAT(steps(*manager), ElementsAre(1));
  EXPECT_EQ(restored(*manager), values(1));
  EXPECT_THAT(manager->collect_garbage().removed, IsEmpty());
  save(*manager, 2, 2);
  EXPECT_EQ(restored(*manager), values(2));
}

TEST_P(RootConformance, ARemovedStepIsGoneAndMayBeSavedAgain) {
  const auto manager = this->manager();
  for (const int step : {1, 2}) save(*manager, step, static_cast<float>(step));
  manager->pins().add(2, "good");
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { manager->remove(2); }),
              HasSubstr("good"));
  manager->pins().remove("good");
  EXPECT_TRUE(manager->remove(2));
  message_of(ErrorCode::no_such_name, [&] { manager->remove(2); });
  EXPECT_THAT(steps(*manager), ElementsAre(1));
  EXPECT_THAT(manager->collect_garbage().removed, IsEmpty());
  save(*manager, 2, 3);
  EXPECT_EQ(restored(*manager), values(3));
}

TEST_P(RootConformance, RetentionKeepsTheLastTheBestAndThoseWithANameOnly) {
  const auto manager =
      this->manager({.keep = {.last = 1, .best = BestSteps{.metric = "loss", .count = 1}}});
  save(*manager, 1, 1, {.metrics = {{"loss", 3.0}}});
  manager->pins().add(1, "first");
  for (const int step : {2, 3, 4}) {
    save(*manager, step, 1, {.metrics = {{"loss", step == 2 ? 1.0 : 2.0}}});
  }
  EXPECT_THAT(steps(*manager), ElementsAre(1, 2, 4));
  EXPECT_EQ(best_step(*manager)->step, 2);
  manager->pins().add(4, "first");
  ASSERT_EQ(manager->pins().list().size(), 1u);
  EXPECT_EQ(manager->pins().list()[0].step, 4);
  manager->pins().remove("first");
  save(*manager, 5, 1, {.metrics = {{"loss", 2.0}}});
  EXPECT_THAT(steps(*manager), ElementsAre(2, 5));
}

TEST_P(RootConformance, ARunThatGoesBackSetsLaterStepsAside) {
  {
    const auto manager = this->manager();
    for (const int step : {1, 2, 3}) save(*manager, step, static_cast<float>(step));
    manager->remove(2);
  }
  const auto manager = this->manager();
  save(*manager, 2, 20);
  EXPECT_EQ(manager->latest()->step.step, 2);
  EXPECT_EQ(restored(*manager), values(20));
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_THAT(warnings_[0], HasSubstr("step 2 is saved below the steps 3, which are set aside"));
}

TEST_P(RootConformance, ADamagedStepIsPassedOverAndReplaced) {
  const auto manager = this->manager();
  save(*manager, 1, 1);
  save(*manager, 2, 2);
  root_->remove_file(root_->path() / "step-00000002/shards-00000-of-00001.h5");
  const auto found = manager->latest();
  EXPECT_EQ(found->step.step, 1);
  ASSERT_EQ(found->rejected.size(), 1u);
  EXPECT_EQ(save(*manager, 2, 3).directory, root_->path() / "step-00000002.g2");
  EXPECT_EQ(restored(*manager), values(3));
}

/// The code of the Error that `body` throws; nothing if it throws none.
std::optional<ErrorCode> code_of(const std::function<void()>& body) {
  try {
    body();
    return {};
  } catch (const Error& e) {
    return e.code();
  }
}

/// The view of a user on a root: its steps with their values and names, and the newest.
std::string seen(const CheckpointManager& manager) {
  std::string text;
  for (const Step& step : manager.steps()) {
    EXPECT_TRUE(verify_checkpoint(step.directory).ok()) << step.directory;
    const std::vector<float> all = read(CheckpointReader(step.directory));
    EXPECT_EQ(all, values(all[0]));
    text += std::to_string(step.step) + (step.is_set_aside ? " aside" : "") + " has " +
            std::to_string(all[0]) + "; ";
  }
  for (const NamedStep& named : manager.pins().list()) {
    text += named.name + " is " + std::to_string(named.step) + "; ";
  }
  std::optional<LatestStep> latest;
  const std::optional<ErrorCode> code = code_of([&] { latest = manager.latest(); });
  if (code) return text + "error";
  return text + (latest ? "latest " + std::to_string(latest->step.step) : "nothing");
}

/// Random acts of several runs, one after the other, and all that is seen after each.
std::vector<std::string> history(Root& root, unsigned seed) {
  std::mt19937 random(seed);
  const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<std::string> lines;
  std::unique_ptr<CheckpointManager> manager;
  for (int act = 0; act < 25; ++act) {
    const std::int64_t step = below(6);
    const int kind = below(12), existing = below(3), last = below(3);
    std::string line = "act " + std::to_string(act) + ", step " + std::to_string(step) + ": ";
    const std::optional<ErrorCode> code = code_of([&] {
      if (!manager || kind == 0) {
        line += "start";
        manager = nullptr;
        ManagerOptions options{.keep = {.last = last}, .warn = [](const std::string&) {}};
        options.file_system = root.files();
        manager = std::make_unique<CheckpointManager>(root.path(), std::move(options));
      } else if (kind < 8) {
        line += "save";
        const SaveOptions options{.existing = static_cast<Existing>(existing)};
        if (save(*manager, step, static_cast<float>(act), options).skipped) line += " skipped";
      } else if (kind == 8) {
        line += "remove";
        manager->remove(step);
      } else if (kind == 9) {
        line += "name";
        manager->pins().add(step, existing == 0 ? "a" : "b");
      } else if (kind == 10) {
        line += "unname";
        manager->pins().remove("a");
      } else {
        line += "collect";
        manager->collect_garbage();
        EXPECT_THAT(manager->collect_garbage().removed, IsEmpty());
      }
    });
    if (code) line += " fails as " + std::string(name(*code));
    lines.push_back(line + ": " + seen(*manager));
  }
  return lines;
}

TEST_P(RootConformance, RandomActsAreSeenAsInAFolder) {
  for (unsigned seed = 0; seed < 5; ++seed) {
    SCOPED_TRACE(seed);
    const std::unique_ptr<Root> oracle = kRoots[0].make(), root = GetParam().make();
    ASSERT_EQ(history(*root, seed), history(*oracle, seed));
  }
}

INSTANTIATE_TEST_SUITE_P(All, RootConformance, ::testing::ValuesIn(kRoots),
                         [](const auto& kind) { return kind.param.name; });

}  // namespace
}  // namespace shardwise
