// WriteOptions::on_save_error: a save that fails as the storage does is no end of the job, on all
// processes alike; everything else is.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "testing/errors.h"
#include "testing/fault_model.h"
#include "testing/faulty_file_system.h"
#include "testing/group_checkpoint.h"
#include "testing/hooked_file_system.h"
#include "testing/temp_dir.h"
#include "testing/tier_job.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::StartsWith;
namespace fs = std::filesystem;

std::vector<std::int64_t> numbers_of(const CheckpointManager& manager) {
  std::vector<std::int64_t> numbers;
  for (const Step& step : manager.steps()) numbers.push_back(step.step);
  return numbers;
}

/// A disk that is full as long as it is said to be.
class FullDisk {
 public:
  std::shared_ptr<FileSystem> files() {
    return std::make_shared<HookedFileSystem>([this](std::string_view operation, const fs::path&) {
      if (is_full && operation == "create") throw Error(ErrorCode::io, "no room", ENOSPC);
    });
  }

  std::atomic<bool> is_full = false;
};

class SaveErrors : public testing::Test {
 protected:
  ManagerOptions tolerant(std::shared_ptr<FileSystem> files) {
    return {.keep = {.last = 2},
            .when = {.every = 0},
            .write = {.on_save_error = OnSaveError::warn,
                      .most_failed_saves = 2,
                      .stats = false,
                      .threads = 1},
            .file_system = std::move(files),
            .warn = [this](const std::string& text) { warnings_.push_back(text); }};
  }

  /// Fails every operation of a save; the saves are asynchronous by turns.
  void fail_each(Fault fault, std::int64_t shift) {
    const TempDir dir;
    const auto files = std::make_shared<FaultyFileSystem>(0, fault);
    ManagerOptions options = tolerant(files);
    options.write.most_failed_saves = 1;
    CheckpointManager manager(dir / "run", options);
    std::int64_t step = 0, failed = 0;
    std::vector<std::int64_t> saved;
    const auto save = [&](std::uint64_t seed) {
      ++step;
      if ((step + shift) % 4 < 2) return manager.save(step, sources_of(fault_model(seed)));
      return manager.save_async(step, sources_of(fault_model(seed))).wait();
    };
    const auto save_well = [&] {
      const std::int64_t before = manager.stats().failed_in_a_row;
      const SaveStats stats = save(1);
      EXPECT_EQ(stats.error, "");
      EXPECT_EQ(stats.failed_saves, before);
      EXPECT_EQ(manager.stats().failed_in_a_row, 0);
      EXPECT_TRUE(holds(CheckpointReader(stats.directory), fault_model(1)));
      saved.push_back(step);
    };
    save_well();
    bool met = true;
    for (std::int64_t at = 1; met; ++at) {
      SCOPED_TRACE(testing::Message() << "operation " << at);
      warnings_.clear();
      files->restart(at);
      const SaveStats stats = save(2);
      met = files->operations() >= at;
      files->restart(0);
      EXPECT_EQ(manager.stats().failed_saves, failed + (stats.error.empty() ? 0 : 1));
      if (stats.error.empty()) {  // it is there; older ones may be, too
        saved.push_back(step);
        EXPECT_FALSE(manager.should_save(7));
      } else {
        ++failed;
        EXPECT_THAT(stats.error, StartsWith("save step "));
        EXPECT_EQ(stats.directory, fs::path());
        EXPECT_EQ(stats.failed_saves, 1);
        EXPECT_EQ(manager.stats().failed_step, step);
        EXPECT_EQ(manager.stats().error, stats.error);
        EXPECT_THAT(warnings_, ElementsAre(stats.error + "; the job goes on: failed saves in a "
                                                         "row: 1 of at most 1"));
        EXPECT_TRUE(manager.should_save(7));
        EXPECT_FALSE(manager.should_save(7));
      }
      save_well();
      EXPECT_THAT(numbers_of(manager), ElementsAre(saved[saved.size() - 2], saved.back()));
    }
    EXPECT_GT(failed, 5);
    manager.close();
  }

  const TempDir dir_;
  FullDisk disk_;
  std::vector<std::string> warnings_;
};

TEST_F(SaveErrors, OfEveryOperationLetTheJobGoOn) {
  fail_each(Fault::no_space, 0);
  fail_each(Fault::cut, 2);
}

TEST_F(SaveErrors, AreThrownOnceThereAreTooManyInARow) {
  CheckpointManager manager(dir_.path(), tolerant(disk_.files()));
  const auto save = [&](std::int64_t step) {
    return manager.save(step, sources_of(fault_model(1))).error;
  };
  EXPECT_EQ(save(1), "");
  for (int round = 0; round < 2; ++round) {
    disk_.is_full = true;
    EXPECT_THAT(save(2), HasSubstr("no room"));
    EXPECT_THAT(save(3), HasSubstr("no room"));
    EXPECT_THAT(message_of(ErrorCode::io, [&] { save(4); }), HasSubstr("no room"));
    EXPECT_THAT(message_of(ErrorCode::io, [&] { save(5); }), HasSubstr("no room"));
    EXPECT_EQ(manager.stats().failed_in_a_row, 4);
    disk_.is_full = false;
    EXPECT_EQ(save(6 + round), "");
    EXPECT_EQ(manager.stats().failed_in_a_row, 0);
  }
  EXPECT_EQ(manager.stats().failed_saves, 8);
  EXPECT_EQ(manager.stats().failed_step, 5);
  EXPECT_THAT(warnings_, SizeIs(4));
}

TEST_F(SaveErrors, AreThrownByDefault) {
  ManagerOptions options = tolerant(disk_.files());
  options.write.on_save_error = OnSaveError::raise;
  CheckpointManager manager(dir_.path(), options);
  disk_.is_full = true;
  message_of(ErrorCode::io, [&] { manager.save(1, sources_of(fault_model(1))); });
  EXPECT_EQ(manager.stats().failed_saves, 0);
  EXPECT_FALSE(manager.should_save(2));
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_EQ(ManagerOptions().write.on_save_error, OnSaveError::raise);
}

TEST_F(SaveErrors, OfTheCallerAreThrown) {
  CheckpointManager manager(dir_.path(), tolerant(disk_.files()));
  manager.save(1, sources_of(fault_model(1)));
  const auto fails = [&](ErrorCode code, std::int64_t step, std::vector<TensorSource> sources,
                         SaveOptions options = {}) {
    SCOPED_TRACE(name(code));
    message_of(code, [&] { manager.save(step, sources, options); });
    message_of(code, [&] { manager.save_async(step, sources, options).wait(); });
  };
  const auto model = sources_of(fault_model(1));
  fails(ErrorCode::already_exists, 1, model);
  fails(ErrorCode::invalid_argument, -1, model);
  fails(ErrorCode::invalid_argument, 2, {model[0], model[0]});
  fails(ErrorCode::cancelled, 2, model,
        {.progress = [](const Progress&) { throw Error(ErrorCode::cancelled, "Ctrl-C"); }});
  const ArraySpec spec = fault_model(1)[0].spec;
  EXPECT_THROW(manager.save(2, {callback_tensor("a", spec,
                                                [](const Box&, std::span<std::byte>) {
                                                  throw std::runtime_error("no device");
                                                })}),
               std::runtime_error);
  EXPECT_EQ(manager.stats().failed_saves, 0);
  EXPECT_FALSE(manager.should_save(2));
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_THAT(
      message_of(ErrorCode::invalid_argument,
                 [&] { CheckpointManager(dir_.path(), {.write = {.most_failed_saves = 0}}); }),
      EndsWith("most_failed_saves is 0, needed 1 or more"));
}

constexpr int kJobRanks = 3;

class SaveErrorsOfGroups : public SaveErrors {
 protected:
  /// Runs on every rank, with files of its own; gives the error of each.
  std::vector<std::string> on_ranks(
      const std::function<void(std::size_t rank, CheckpointManager&)>& run,
      const std::function<void(std::size_t rank, ManagerOptions&)>& change,
      const std::function<SocketFaults(int)>& faults = {}) {
    return run_ranks(kJobRanks, faults, [&](std::shared_ptr<SocketTransport> transport) {
      ManagerOptions options = tolerant(nullptr);
      options.group = ProcessGroup(std::move(transport));
      const auto rank = static_cast<std::size_t>(options.group.rank());
      change(rank, options);
      CheckpointManager manager(dir_ / "root", options);
      run(rank, manager);
    });
  }

  static std::vector<TensorSource> model() {
    return sources_of(std::vector<HostTensor>{
        host_tensor("a", DType::f32, {9, 50}, "data=6", "data,-", Values::noise, 1)});
  }
};

TEST_F(SaveErrorsOfGroups, OfOneRankLetAllGoOn) {
  for (const std::size_t faulty : {0u, 1u}) {
    SCOPED_TRACE(testing::Message() << "rank " << faulty);
    fs::remove_all(dir_ / "root");
    const auto files = std::make_shared<FaultyFileSystem>(0, Fault::no_space);
    std::atomic<bool> met = true;
    struct Answer {
      std::string error;
      bool should_save;
      std::int64_t failed;
      bool operator==(const Answer&) const = default;
    };
    std::array<std::vector<Answer>, kJobRanks> said;
    const auto errors = on_ranks(
        [&](std::size_t rank, CheckpointManager& manager) {
          std::int64_t step = 0;
          for (std::int64_t at = 1; met; ++at) {
            if (rank == faulty) files->restart(at);
            const bool is_async = at % 2 == 0;
            const SaveStats stats = is_async ? manager.save_async(++step, model()).wait()
                                             : manager.save(++step, model());
            if (rank == faulty) {
              met = files->operations() >= at;
              files->restart(0);
            }
            const bool should = manager.should_save(7);  // all have come; one has said if it is met
            said[rank].push_back({stats.error, should, manager.stats().failed_saves});
            const SaveStats next = manager.save(++step, model());
            EXPECT_EQ(next.error, "");
            EXPECT_EQ(next.failed_saves, stats.error.empty() ? 0 : 1);
            EXPECT_FALSE(manager.should_save(7));
          }
        },
        [&](std::size_t rank, ManagerOptions& options) {
          if (rank == faulty) options.file_system = files;
        });
    EXPECT_THAT(errors, Each(""));
    EXPECT_THAT(said, Each(said[0]));
    std::int64_t failed = 0;
    for (const auto& [error, should_save, count] : said[0]) {
      EXPECT_EQ(should_save, !error.empty());
      EXPECT_EQ(count, failed += error.empty() ? 0 : 1);
      if (!error.empty()) {
        EXPECT_THAT(error, AllOf(StartsWith("rank " + std::to_string(faulty) + ": save step "),
                                 HasSubstr("injected")));
      }
    }
    EXPECT_GT(failed, 5);
  }
  // Rank 0 alone tells of them: the others' managers share the list.
  for (const std::string& warning : warnings_) EXPECT_THAT(warning, HasSubstr("the job goes on"));
}

TEST_F(SaveErrorsOfGroups, OnceTooManyAreThrownOnAll) {
  const auto errors = on_ranks(
      [&](std::size_t, CheckpointManager& manager) {
        EXPECT_THAT(manager.save(1, model()).error, HasSubstr("rank 1: save step 1"));
        EXPECT_THAT(manager.save(2, model()).error, HasSubstr("rank 1: save step 2"));
        manager.save(3, model());
      },
      [&](std::size_t rank, ManagerOptions& options) {
        if (rank == 1) options.file_system = disk_.files();
        if (rank == 1) disk_.is_full = true;
      });
  EXPECT_THAT(errors, Each(HasSubstr("no room")));
  EXPECT_THAT(warnings_, SizeIs(2));
}

TEST_F(SaveErrorsOfGroups, OfOneCallerAreThrownOnAllAndTheNextSaveIsGood) {
  const auto errors = on_ranks(
      [&](std::size_t rank, CheckpointManager& manager) {
        std::vector<TensorSource> sources = model();
        if (rank == 1) sources.push_back(sources[0]);
        EXPECT_THROW(manager.save(1, std::move(sources)), Error);
        EXPECT_EQ(manager.save(1, model()).error, "");
        const auto stop = [&](const Progress&) {
          if (rank == 2) throw Error(ErrorCode::cancelled, "Ctrl-C");
        };
        EXPECT_THROW(manager.save(2, model(), {.progress = stop}), Error);
        EXPECT_EQ(manager.stats().failed_saves, 0);
        EXPECT_EQ(manager.save(2, model()).error, "");
      },
      [](std::size_t, ManagerOptions&) {});
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(SaveErrorsOfGroups, MeanTheSameOnAllRanks) {
  const auto errors =
      on_ranks([&](std::size_t, CheckpointManager& manager) { manager.save(1, model()); },
               [](std::size_t rank, ManagerOptions& options) {
                 if (rank == 1) options.write.on_save_error = OnSaveError::raise;
               });
  EXPECT_THAT(errors, Each(HasSubstr("rank 0 saves with most_failed_saves 2, rank 1 with none")));
}

// Whatever its last message was.
TEST_F(SaveErrorsOfGroups, ADeadRankIsNotGoneOnWithout) {
  for (int faulty = 0; faulty < kJobRanks; ++faulty) {
    for (std::int64_t message = 1; message <= (faulty == 0 ? 4 : 1); ++message) {
      SCOPED_TRACE(testing::Message() << "instead of message " << message << " of rank " << faulty);
      fs::remove_all(dir_ / "root");
      const auto errors = on_ranks(
          [&](std::size_t, CheckpointManager& manager) {
            EXPECT_EQ(manager.save(1, model()).error, "");
          },
          [](std::size_t, ManagerOptions&) {},
          [&](int rank) {
            return rank == faulty ? SocketFaults{.stop = message} : SocketFaults();
          });
      EXPECT_THAT(errors, Each(testing::Not("")));
    }
  }
  EXPECT_THAT(warnings_, IsEmpty());
}

// Errors come from the fast root of one process, and then from the durable one.
TEST_F(SaveErrors, OfATierLetTheJobGoOn) {
  const std::vector<HostTensor> tensors = {
      host_tensor("a", DType::f32, {60, 500}, "data=2", "data,-", Values::noise, 1)};
  const auto files =
      std::make_shared<HookedFileSystem>([&](std::string_view operation, const fs::path& path) {
        const std::string text = path.string();
        const auto has = [&](const char* part) { return text.find(part) != std::string::npos; };
        if (operation != "create") return;
        if (has("process-00001") ? has("step-00000003") : has("durable") && has("step-00000005")) {
          throw Error(ErrorCode::io, "no room", ENOSPC);
        }
      });
  TierOptions options{.local = {.copies = 1},
                      .drain = {.every = 2},
                      .write = {.on_save_error = OnSaveError::warn},
                      .devices = 2,
                      .warn = [this](const std::string& text) { warnings_.push_back(text); }};
  const auto errors = run_tiers(
      dir_.path(), 2, options,
      [&](Devices&, TieredManager& manager) {
        for (std::int64_t step = 1; step <= 7; ++step) {
          const auto sources = sources_of(tensors);
          const SaveStats stats = step % 4 == 3 ? manager.save_async(step, sources).wait()
                                                : manager.save(step, sources);
          if (step == 3) {
            EXPECT_THAT(stats.error, StartsWith("rank 1: save step 3: "));
            EXPECT_EQ(manager.stats().failed_step, 3);
          } else {
            EXPECT_EQ(stats.error, "");
          }
        }
        EXPECT_EQ(manager.stats().failed_saves, 1);
        manager.close();
        EXPECT_THAT(numbers_of(manager.durable()), ElementsAre(1, 7));
        EXPECT_EQ(manager.durable().stats().failed_step, 5);
      },
      [&](int) { return files; });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(warnings_, SizeIs(2));
}

}  // namespace
}  // namespace shardwise
