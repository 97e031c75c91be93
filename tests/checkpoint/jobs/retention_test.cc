// Retention with steps that cannot be removed, or not as others are.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/checkpoint/detail/root/marks/pin.h"
#include "shardwise/checkpoint/detail/root/root.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/root_names.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using testing::StartsWith;
namespace fs = std::filesystem;

std::size_t times(const std::string& part, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++count;
  }
  return count;
}

class Retention : public testing::Test {
 protected:
  // The steps 1 to `count`, saved by a manager that keeps all.
  void fill(std::int64_t count) {
    CheckpointManager all(dir_.path(), {.write = {.stats = false}});
    for (std::int64_t step = 1; step <= count; ++step) all.save(step, {tensor_.source()});
  }

  // Saves with retention; says what could not be removed.
  std::string save(std::int64_t step) {
    return manager_->save(step, {tensor_.source()}).cleanup_error;
  }

  std::vector<std::string> names() const { return root_names(dir_.path()); }

  const TempDir dir_;
  const HostTensor tensor_ = host_tensor("x", DType::f32, {100, 10}, "2", "0,-");

  // May throw.
  std::function<void(std::string_view operation, const fs::path& path)> before_;
  std::optional<CheckpointManager> manager_{
      std::in_place, dir_.path(),
      ManagerOptions{.keep = {.last = 1},
                     .write = {.reuse_files = false, .stats = false},
                     .file_system = std::make_shared<HookedFileSystem>(
                         [this](std::string_view operation, const fs::path& path) {
                           if (before_) before_(operation, path);
                         })}};
};

// An immutable directory, say: it must not fill up the disk with all the others.
TEST_F(Retention, GoesOnAfterAStepThatCannotBeRemovedAndTriesAgain) {
  fill(3);
  bool stuck = true;
  before_ = [&](std::string_view operation, const fs::path& path) {
    if (stuck && operation == "rename" && path.filename() == "step-00000001") {
      throw Error(ErrorCode::io, "injected: it is immutable");
    }
  };
  EXPECT_EQ(save(4), "injected: it is immutable");
  EXPECT_THAT(names(), ElementsAre("step-00000001", "step-00000004"));
  EXPECT_EQ(save(5), "injected: it is immutable");
  EXPECT_THAT(names(), ElementsAre("step-00000001", "step-00000005"));
  stuck = false;
  EXPECT_EQ(save(6), "");
  EXPECT_THAT(names(), ElementsAre("step-00000006"));
}

TEST_F(Retention, TellsFiveFailuresAndCountsTheRest) {
  fill(8);
  before_ = [&](std::string_view operation, const fs::path& path) {
    const std::string name = path.filename().string();
    if (operation == "rename" && name.starts_with("step-")) {
      throw Error(ErrorCode::io, "injected: " + name + " stays");
    }
  };
  const std::string error = save(9);
  EXPECT_THAT(error, AllOf(HasSubstr("step-00000001 stays; "), HasSubstr("step-00000005 stays; "),
                           Not(HasSubstr("step-00000006")), testing::EndsWith("; and 3 more")));
  EXPECT_EQ(times("injected", error), 5u);
}

TEST_F(Retention, RemovesAtTheNextSaveWhatOnlyLostItsName) {
  fill(1);
  bool stuck = true;
  before_ = [&](std::string_view operation, const fs::path& path) {
    if (stuck && operation == "remove" && path.filename() == "index.h5") {
      throw Error(ErrorCode::io, "injected: it stays");
    }
  };
  EXPECT_EQ(save(2), "injected: it stays");
  EXPECT_THAT(names(), ElementsAre(StartsWith(".trash-step-00000001."), "step-00000002"));
  stuck = false;
  EXPECT_EQ(save(3), "");
  EXPECT_THAT(names(), ElementsAre("step-00000003"));
}

// It may be valid or not: the kept steps in addition to it are known to be.
TEST_F(Retention, DoesNotCountAStepThatCannotBeRead) {
  fill(3);
  manager_.emplace(dir_.path(),
                   ManagerOptions{.keep = {.last = 2},
                                  .write = {.reuse_files = false, .stats = false},
                                  .file_system = std::make_shared<HookedFileSystem>(
                                      [](std::string_view operation, const fs::path& path) {
                                        if (operation == "open" &&
                                            path.parent_path().filename() == "step-00000003") {
                                          throw Error(ErrorCode::io, "injected: no rights");
                                        }
                                      })});
  EXPECT_THAT(save(4), HasSubstr("injected: no rights"));
  EXPECT_THAT(names(), ElementsAre("step-00000002", "step-00000003", "step-00000004"));
}

TEST_F(Retention, CollectionGoesOnAfterAGenerationThatCannotBeRemoved) {
  fill(2);
  for (const char* name : {"step-00000001", "step-00000002"}) {
    fs::copy(dir_ / name, dir_ / (std::string(name) + ".g2"));
  }
  before_ = [&](std::string_view operation, const fs::path& path) {
    if (operation == "rename" && path.filename() == "step-00000001") {
      throw Error(ErrorCode::io, "injected: it stays");
    }
  };
  EXPECT_THROW(manager_->collect_garbage(), Error);
  EXPECT_THAT(names(), ElementsAre("step-00000001", "step-00000001.g2", "step-00000002.g2"));
}

/// As in an overlay whose lower layer holds the steps.
class CannotRename : public Retention {
 protected:
  CannotRename() {
    fill(2);
    before_ = [this](std::string_view operation, const fs::path& path) {
      const fs::path name = path.lexically_relative(dir_.path());
      if (operation == "rename" && (name == "step-00000001" || name == "step-00000002")) {
        throw Error(ErrorCode::unsupported, "injected: another layer");
      }
      if (name.begin() != name.end() && *name.begin() == "step-00000001") {
        done_.push_back(std::string(operation) + " " + name.string());
      }
      if (then_) then_(operation, path);
    };
  }

  std::function<void(std::string_view operation, const fs::path& path)> then_;
  std::vector<std::string> done_;  // in the directory of step 1
};

TEST_F(CannotRename, IsRemovedInItsPlaceTheManifestFirst) {
  EXPECT_EQ(save(3), "");
  EXPECT_THAT(names(), ElementsAre("step-00000003"));
  const auto begin = std::find_if(done_.begin(), done_.end(),
                                  [](const std::string& text) { return text[0] == 'r'; });
  ASSERT_GT(done_.end() - begin, 3);
  EXPECT_EQ(begin[0], "rename step-00000001/manifest.json");
  EXPECT_EQ(begin[1], "sync directory step-00000001");
  EXPECT_EQ(begin[2], "remove step-00000001");
}

TEST_F(CannotRename, IsRemovedWhenTheUserSaysSo) {
  manager_->remove(1);
  EXPECT_THAT(names(), ElementsAre("step-00000002"));
}

// At every instant it is a checkpoint, whole, or none.
TEST_F(CannotRename, IsNoCheckpointOnceItIsHalfRemoved) {
  std::vector<bool> whole;
  then_ = [&](std::string_view, const fs::path& path) {
    if (path.parent_path() != dir_ / "step-00000001") return;
    try {
      whole.push_back(verify_checkpoint(dir_ / "step-00000001", {.pin = false}).ok());
      EXPECT_TRUE(whole.back());
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::not_found) << e.what();
      whole.push_back(false);
    }
  };
  EXPECT_EQ(save(3), "");
  EXPECT_TRUE(whole.front());
  EXPECT_FALSE(whole.back());
}

TEST_F(CannotRename, ComesBackForAReaderWhoPinsItMeanwhile) {
  std::optional<detail::Pin> pin;
  bool pinned = false;
  const auto files = posix_file_system();
  then_ = [&](std::string_view operation, const fs::path& path) {
    const bool loses_its_manifest =
        operation == "rename" && path == dir_ / "step-00000001/manifest.json";
    if (!loses_its_manifest || std::exchange(pinned, true)) return;
    pin.emplace(*files, dir_ / "step-00000001");
  };
  EXPECT_EQ(save(3), "");
  EXPECT_THAT(names(), ElementsAre(StartsWith(".pin-"), "step-00000001", "step-00000003"));
  EXPECT_TRUE(verify_checkpoint(dir_ / "step-00000001").ok());
  pin.reset();
  EXPECT_EQ(save(4), "");
  EXPECT_THAT(names(), ElementsAre("step-00000004"));
}

// The process has died in the midst of it.
TEST_F(CannotRename, IsRemovedByTheNextSaveWhereOnlyHalfOfItIsLeft) {
  fs::remove(dir_ / "step-00000001/manifest.json");
  EXPECT_EQ(save(3), "");
  EXPECT_THAT(names(), ElementsAre("step-00000003"));
}

TEST_F(CannotRename, TrashIsRemovedWhereItIs) {
  const std::string trash = ".trash-step-00000009." + std::string(32, 'a');
  fs::create_directories(dir_ / trash / "notes");
  then_ = [&](std::string_view operation, const fs::path& path) {
    if (operation == "rename" && path.filename() == trash) {
      throw Error(ErrorCode::unsupported, "injected: another layer");
    }
  };
  EXPECT_THAT(manager_->collect_garbage().removed, ElementsAre(trash));
  EXPECT_THAT(names(), SizeIs(2));
}

TEST_F(Retention, RetiresOneStepUnlessSomebodyReadsIt) {
  fill(3);
  {
    const CheckpointReader reader(manager_->step(3).directory);
    EXPECT_FALSE(manager_->remove(3, WhenRead::keep));
  }
  EXPECT_TRUE(manager_->remove(3, WhenRead::keep));
  EXPECT_THROW(manager_->remove(3, WhenRead::keep), Error);
}

}  // namespace
}  // namespace shardwise
