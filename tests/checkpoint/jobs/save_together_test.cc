// One save of all processes of a rendezvous, to a path of any name: jobs/save_together.h.
#include "shardwise/jobs/save_together.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "shardwise/checkpoint/attempt.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/detail/caller.h"
#include "shardwise/jobs/manager.h"
#include "testing/errors.h"
#include "testing/fake_clock.h"
#include "testing/faulty_file_system.h"
#include "testing/group_checkpoint.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

constexpr int kSavingRanks = 4;

Bytes bytes_of(const std::string& text) {
  Bytes bytes(text.size());
  std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

/// Each rank's own objects, merged by rank 0.
JobSave job_of(int rank) {
  return {.starts = {0, 1, 2, 3, 4},
          .describe = [rank] { return bytes_of(std::to_string(rank)); },
          .document =
              [](const std::vector<Bytes>& all) {
                std::string text = "[";
                for (const Bytes& one : all) {
                  text += text.size() == 1 ? "" : ",";
                  text.append(reinterpret_cast<const char*>(one.data()), one.size());
                }
                return text + "]";
              }};
}

class SaveTogetherTest : public testing::Test {
 protected:
  using Change =
      std::function<void(int rank, JobSave&, EncodeOptions&, std::vector<TensorSource>&)>;

  std::vector<std::string> save(const Change& change = {}) {
    stats_.assign(kSavingRanks, {});
    return run_ranks(kSavingRanks, {}, [&](std::shared_ptr<SocketTransport> transport) {
      const int rank = transport->rank();
      const GroupRendezvous ranks(ProcessGroup(std::move(transport)), "save model.sw");
      JobSave job = job_of(rank);
      EncodeOptions encode{.threads = 1};
      std::vector<TensorSource> sources{tensor_.source()};
      if (change) change(rank, job, encode, sources);
      stats_[static_cast<std::size_t>(rank)] =
          save_together(ranks, path_, std::move(sources), std::move(job), encode);
    });
  }

  TempDir dir_;
  const std::filesystem::path path_ = dir_ / "model.sw";
  const HostTensor tensor_ = host_tensor("w", DType::f32, {1024, 256}, "data=4", "data,-");
  std::vector<SaveStats> stats_;
};

TEST_F(SaveTogetherTest, HoldsWhatOneProcessSaves) {
  EXPECT_THAT(save(), Each(""));
  EXPECT_THAT(verify_checkpoint(path_).damage, IsEmpty());
  const CheckpointReader reader(path_);
  EXPECT_TRUE(holds(reader, std::vector{tensor_}));
  EXPECT_EQ(reader.objects_json(), "[0,1,2,3]");
  for (const SaveStats& stats : stats_) {
    EXPECT_EQ(stats.directory, path_);
    EXPECT_EQ(stats.logical_bytes, 1024u * 256 * 4);
    EXPECT_GT(stats.memory_bytes, 0u);
  }
}

TEST_F(SaveTogetherTest, TakesTensorsThatOneRankAloneHas) {
  const HostTensor other = host_tensor("only on 2", DType::f32, {64}, "x=1", "-");
  EXPECT_THAT(save([&](int rank, JobSave&, EncodeOptions&, std::vector<TensorSource>& sources) {
                if (rank != 2) return;
                TensorSource source = other.source();
                source.sharding.reset();
                source.boxes = {Box::whole({64})};
                sources.push_back(source);
              }),
              Each(""));
  EXPECT_THAT(verify_checkpoint(path_).damage, IsEmpty());
  EXPECT_TRUE(CheckpointReader(path_).contains("only on 2"));
}

TEST_F(SaveTogetherTest, TellsAllRanksWhatFailedOnOne) {
  const auto is_told = AllOf(HasSubstr("the tensor's function"));
  EXPECT_THAT(save([](int rank, JobSave&, EncodeOptions&, std::vector<TensorSource>& sources) {
                if (rank != 3) return;
                sources.front() =
                    callback_tensor("w", {DType::f32, {1024, 256}, *sources.front().sharding},
                                    [](const Box&, std::span<std::byte>) -> void {
                                      throw std::runtime_error("the tensor's function");
                                    });
              }),
              Each(is_told));
  EXPECT_THAT(save([](int rank, JobSave& job, EncodeOptions&, std::vector<TensorSource>&) {
                if (rank == 0) {
                  job.document = [](const std::vector<Bytes>&) -> std::string {
                    throw std::runtime_error("the tensor's function");
                  };
                }
              }),
              Each(is_told));
  EXPECT_THAT(save([](int rank, JobSave& job, EncodeOptions&, std::vector<TensorSource>&) {
                if (rank == 1) job.starts = {0, 2, 1};
              }),
              Each(HasSubstr("devices")));
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(SaveTogetherTest, RefusesRanksThatDiffer) {
  EXPECT_THAT(save([](int rank, JobSave&, EncodeOptions& encode, std::vector<TensorSource>&) {
                if (rank == 1) encode.codec = Codec::none;
              }),
              Each(HasSubstr("rank 0 saves with codec zstd, rank 1 with none")));
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(SaveTogetherTest, SkipsWhatIsThereAndReplacesIt) {
  EXPECT_THAT(save(), Each(""));
  EXPECT_THAT(save(), Each(HasSubstr("it is already there")));
  EXPECT_THAT(save([](int, JobSave& job, EncodeOptions&, auto&) { job.existing = Existing::skip; }),
              Each(""));
  for (const SaveStats& stats : stats_) {
    EXPECT_TRUE(stats.skipped);
    EXPECT_EQ(stats.directory, path_);
  }
  EXPECT_THAT(save([](int, JobSave& job, auto&, auto&) { job.existing = Existing::replace; }),
              Each(""));
  EXPECT_THAT(verify_checkpoint(path_).damage, IsEmpty());
}

TEST_F(SaveTogetherTest, RankZeroFindsTheStepBeforeForAll) {
  EXPECT_THAT(save(), Each(""));
  const std::filesystem::path next = dir_ / "next.sw";
  const auto errors = run_ranks(kSavingRanks, {}, [&](std::shared_ptr<SocketTransport> transport) {
    const int rank = transport->rank();
    JobSave job = job_of(rank);
    job.unchanged_since = [&]() -> std::filesystem::path {
      EXPECT_EQ(rank, 0);
      return path_;
    };
    const SaveStats stats = save_together(GroupRendezvous(ProcessGroup(std::move(transport)), "s"),
                                          next, {tensor_.source()}, std::move(job), {.threads = 1});
    EXPECT_EQ(stats.unchanged_bytes, stats.logical_bytes);
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(verify_checkpoint(next).damage, IsEmpty());
}

TEST_F(SaveTogetherTest, OneProcessNeedsNoGroup) {
  save_together(GroupRendezvous(ProcessGroup(), "save"), path_, {tensor_.source()}, {});
  save_checkpoint(dir_ / "alone", {tensor_.source()});
  EXPECT_TRUE(holds(CheckpointReader(path_), std::vector{tensor_}));
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    if (entry.path().extension() != ".h5") continue;
    EXPECT_EQ(file_text(entry.path()), file_text(dir_ / "alone" / entry.path().filename()));
  }
}

/// Steps of a root that ranks save together, each with a manager without a group.
class StepsTogether : public SaveTogetherTest {
 protected:
  using Body = std::function<void(int rank, const ProcessGroup&, CheckpointManager&)>;

  std::vector<std::string> on_ranks(ManagerOptions options, const Body& body) {
    return run_ranks(kSavingRanks, {}, [&](std::shared_ptr<SocketTransport> transport) {
      const int rank = transport->rank();
      const ProcessGroup group(std::move(transport));
      ManagerOptions own = options;
      own.write.threads = 1;
      own.collect_garbage = rank == 0;
      own.warn = [](const std::string&) {};
      own.file_system = std::make_shared<HookedFileSystem>(
          [this, rank](std::string_view operation, const std::filesystem::path&) {
            if (rank == full_ && operation == "create") throw Error(ErrorCode::io, "no room");
          });
      CheckpointManager manager(root_, own);
      body(rank, group, manager);
    });
  }

  SaveStats save_step(const ProcessGroup& group, CheckpointManager& manager, std::int64_t step,
                      const jobs_detail::CallersPart& caller = {}) {
    const std::string subject = "save step " + std::to_string(step);
    const GroupRendezvous ranks(group.duplicate(), subject), ends(group.duplicate(), "");
    return jobs_detail::save_together(
        ranks, {.manager = manager, .step = step, .ends = ends}, caller, {tensor_.source()},
        group.size() == 1 ? JobSave() : job_of(group.rank()), {.threads = 1}, {});
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root_)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(".writer.")) names.push_back(name);
    }
    std::ranges::sort(names);
    return names;
  }

  const std::filesystem::path root_ = dir_ / "root";
  std::atomic<int> full_ = -1;  // the rank whose disk is full
};

TEST_F(StepsTogether, AllFollowsACommitThatFollowsAManagersOwn) {
  const auto errors = on_ranks(
      {.keep = {.last = 1}, .write = {.parity_blocks = 1}},
      [&](int rank, const ProcessGroup& group, CheckpointManager& manager) {
        save_step(group, manager, 1);
        const SaveStats stats = save_step(
            group, manager, 2, {.waited_seconds = 0.125, .is_waiting = false, .copied_bytes = 77});
        EXPECT_THAT(manager.steps(), SizeIs(1)) << rank << " sees what rank 0 has removed";
        EXPECT_EQ(stats.unchanged_bytes, stats.logical_bytes);
        EXPECT_GT(stats.parity_bytes, 0u);
        EXPECT_EQ(stats.blocked_seconds, 0.125);
        EXPECT_EQ(stats.cleanup_error, "");
      });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(names(), ElementsAre("stats-step-00000002.json", "step-00000002"));
  EXPECT_THAT(file_text(root_ / "stats-step-00000002.json"),
              HasSubstr("\"blocked_seconds\":0.125"));
  EXPECT_THAT(verify_checkpoint(root_ / "step-00000002").damage, IsEmpty());
}

TEST_F(StepsTogether, TheJobGoesOnAfterASaveThatFailsOnOneRank) {
  const auto errors = on_ranks(
      {.when = {.every = 0}, .write = {.on_save_error = OnSaveError::warn, .most_failed_saves = 1}},
      [&](int rank, const ProcessGroup& group, CheckpointManager& manager) {
        group.barrier();
        if (rank == 0) full_ = 2;
        group.barrier();
        const SaveStats failed = save_step(group, manager, 1);
        EXPECT_THAT(failed.error, AllOf(HasSubstr("rank 2: "), HasSubstr("no room")));
        EXPECT_EQ(manager.stats().failed_in_a_row, 1);
        EXPECT_EQ(manager.should_save(1), rank == 0) << "which tells the others";
        EXPECT_THROW(save_step(group, manager, 1), Error);
        group.barrier();
        if (rank == 0) full_ = -1;
        group.barrier();
        EXPECT_EQ(save_step(group, manager, 1).failed_saves, 2);
        EXPECT_EQ(manager.stats().failed_in_a_row, 0);
      });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(names(), ElementsAre("stats-step-00000001.json", "step-00000001"));
}

TEST_F(StepsTogether, AStepThatARestartFindsDamagedIsReplacedOnce) {
  const auto errors =
      on_ranks({}, [&](int rank, const ProcessGroup& group, CheckpointManager& manager) {
        for (const std::int64_t step : {1, 2, 3}) save_step(group, manager, step);
        const GroupRendezvous ranks(group.duplicate(), "");
        const auto damaged_from = [&](std::int64_t first) {
          return [=](const Step& step) {
            if (rank == 1 && step.step >= first)
              throw Error(ErrorCode::corrupt, "a chunk is damaged");
          };
        };
        EXPECT_EQ(restore_together(ranks, manager, damaged_from(3))->step.step, 2);
        EXPECT_THAT(message_of(ErrorCode::corrupt,
                               [&] { restore_together(ranks, manager, damaged_from(2), 2); }),
                    HasSubstr("step-00000002: rank 1: a chunk is damaged"));
        for (const std::int64_t step : {2, 3}) {
          save_step(group, manager, step);
          EXPECT_THROW(save_step(group, manager, step), Error) << "it is there";
        }
        EXPECT_EQ(latest_together(ranks, manager)->step.step, 3);
      });
  EXPECT_THAT(errors, Each(""));
  EXPECT_THAT(names(), AllOf(Contains("step-00000002.g2"), Contains("step-00000003.g2"),
                             Not(Contains("step-00000003"))));
}

TEST_F(StepsTogether, TheIntervalCountsFromTheirSaves) {
  const auto clock = std::make_shared<FakeClock>();
  CheckpointManager manager(
      root_, {.when = {.every = 0, .interval = std::chrono::seconds(60), .clock = clock}});
  clock->wait_until(std::chrono::seconds(60));
  EXPECT_TRUE(manager.should_save(1));
  save_step({}, manager, 1);
  EXPECT_FALSE(manager.should_save(2));
}

}  // namespace
}  // namespace shardwise
