// Two tiers, on hosts that are directories and processes that are threads.

#include "shardwise/tiers/tiers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <set>

#include "shardwise/checkpoint/verify.h"
#include "testing/errors.h"
#include "testing/fake_clock.h"
#include "testing/faulty_file_system.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/hooked_file_system.h"
#include "testing/host_tensor.h"
#include "testing/random_shardings.h"
#include "testing/tier_job.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

/// The same with a tensor that no step changes, of as many bytes as the others.
std::vector<HostTensor> with_frozen(std::vector<HostTensor> tensors) {
  HostTensor frozen = tensors.front();
  frozen.name = "frozen";
  frozen.spec.shape = {60, 3500};
  frozen.data = std::make_shared<const std::vector<std::byte>>(
      test_values(DType::f32, frozen.spec.shape, Values::noise, 99));
  tensors.push_back(std::move(frozen));
  return tensors;
}

class Tiers : public TierJob {
 protected:
  /// Expects that both of two hosts have the files of both processes, with their linked files, and
  /// the same bytes in them. Gives their number, with the manifest.
  std::size_t expect_copies(const std::string& step) const {
    const fs::path first = process_of(dir_.path(), 0) / step,
                   second = process_of(dir_.path(), 1) / step;
    const auto names = [](const fs::path& directory) {
      std::set<std::string> found;
      for (const auto& entry : fs::directory_iterator(directory)) {
        found.insert(entry.path().filename());
      }
      return found;
    };
    EXPECT_EQ(names(first), names(second));
    EXPECT_TRUE(names(first).contains("shards-00000-of-00002.h5"));
    EXPECT_TRUE(names(first).contains("shards-00001-of-00002.h5"));
    for (const std::string& name : names(first)) {
      EXPECT_TRUE(file_bytes(first / name) == file_bytes(second / name)) << name;
    }
    return names(first).size();
  }
};

TEST_F(Tiers, TheDurableCheckpointIsWhatOneProcessWouldSave) {
  const std::vector<HostTensor> tensors = model(Mesh::parse("data=4,model=3"), "data,model", 1);
  const auto errors = on_ranks(4, 1, {.local = {.copies = 1}}, [&](Devices&, TieredManager& tiers) {
    tiers.save(7, sources_of(tensors), {.user_json = R"({"loss":1})"});
    tiers.close();
    EXPECT_EQ(tiers.durable().steps().size(), 1u);
  });
  EXPECT_THAT(errors, Each(""));
  const fs::path step = durable() / "step-00000007";
  EXPECT_TRUE(verify_checkpoint(step).ok());
  const CheckpointReader reader(step);
  EXPECT_TRUE(holds(reader, tensors));
  EXPECT_EQ(reader.user_json(), R"({"loss":1})");
  EXPECT_TRUE(reader.has_index());
  CheckpointManager one(dir_ / "one");
  const SaveStats alone = one.save(7, sources_of(tensors), {.writers = 4});
  for (const auto& entry : fs::directory_iterator(alone.directory)) {
    const std::string name = entry.path().filename();
    if (name == "manifest.json") continue;
    EXPECT_TRUE(file_bytes(step / name) == file_bytes(entry.path())) << name;
  }
}

// A host is lost, and another one comes in its place; the job may go on with other processes.
TEST_F(Tiers, CopiesFillInForALostHost) {
  RandomShardings random(5);
  for (int round = 0; round < 12; ++round) {
    const int hosts = static_cast<int>(random.draw(2, 3)),
              per_host = static_cast<int>(random.draw(1, 2)),
              lost = static_cast<int>(random.draw(0, hosts - 1));
    SCOPED_TRACE(testing::Message() << "round " << round << ": host " << lost << " of " << hosts
                                    << " with " << per_host);
    for (const auto& entry : fs::directory_iterator(dir_.path())) fs::remove_all(entry);
    const Mesh mesh = Mesh::parse("data=4,model=3");
    const auto at_step = [&](std::int64_t step) {
      return with_frozen(model(mesh, "data,model", static_cast<std::uint64_t>(step)));
    };
    auto errors =
        on_ranks(hosts * per_host, per_host, {.local = {.copies = 1}, .drain = {.every = 3}},
                 [&](Devices&, TieredManager& tiers) {
                   for (std::int64_t step = 1; step <= 5; ++step) {
                     tiers.save_async(step, sources_of(at_step(step)));
                   }
                   tiers.close();
                 });
    ASSERT_THAT(errors, Each(""));
    EXPECT_TRUE(fs::exists(durable() / "step-00000004"));
    fs::remove_all(host(lost));
    const int now = static_cast<int>(random.draw(1, 2));  // processes on each host
    const auto tensors = at_step(5);
    const Mesh other = Mesh::line(12);
    const std::int64_t by_columns = random.draw(0, (1 << hosts * now) - 1);  // a bit for each rank
    errors = on_ranks(hosts * now, now, {.local = {.copies = 1}},
                      [&](Devices& devices, TieredManager& tiers) {
                        const bool columns = (by_columns >> devices.group().rank()) % 2 == 1;
                        const auto requests = requests_for(tensors, other, columns ? "-,0" : "0,-");
                        expect_latest(devices, tiers, Tier::fast, 5, tensors, requests);
                        for (std::int64_t step = 6; step <= 9; ++step)
                          tiers.save(step, sources_of(at_step(step)));
                        tiers.close();
                        expect_latest(devices, tiers, Tier::fast, 9, at_step(9), requests);
                      });
    EXPECT_THAT(errors, Each(""));
    std::set<std::string> left;
    for (int h = 0; h < hosts; ++h) {
      for (const auto& process : fs::directory_iterator(host(h))) {
        left.insert(process.path().filename());
        for (const auto& step : fs::directory_iterator(process)) {
          EXPECT_THAT(step.path().filename(), testing::AnyOf("step-00000008", "step-00000009"));
        }
      }
    }
    EXPECT_EQ(left.size(), static_cast<std::size_t>(hosts * now)) << "none of ranks that are gone";
  }
}

TEST_F(Tiers, GoesBackToTheDurableStepWhereTooMuchIsLost) {
  const Mesh mesh = Mesh::parse("data=4,model=3");
  const auto at_step = [&](std::uint64_t step) { return model(mesh, "data,model", step); };
  auto errors = on_ranks(3, 1, {.local = {.copies = 1}, .drain = {.every = 2}},
                         [&](Devices&, TieredManager& tiers) {
                           for (const std::uint64_t step : {1u, 2u, 3u, 4u}) {
                             tiers.save(static_cast<std::int64_t>(step), sources_of(at_step(step)));
                           }
                           tiers.close();
                         });
  ASSERT_THAT(errors, Each(""));
  fs::remove_all(host(0));
  fs::remove_all(host(1));
  errors = on_ranks(3, 1, {}, [&](Devices& devices, TieredManager& tiers) {
    const auto requests = requests_for(at_step(3), mesh, "model,-");
    expect_latest(devices, tiers, Tier::durable, 3, at_step(3), requests);
    const auto found = tiers.latest(addressable_boxes(devices, requests));
    EXPECT_THAT(found->to_string(),
                AllOf(HasSubstr("step 3 of the durable tier"),
                      HasSubstr("not step 4 of the fast tier: 1 of 3 shard files are nowhere")));
  });
  EXPECT_THAT(errors, Each(""));
  fs::remove_all(durable());
  errors = on_ranks(3, 1, {}, [&](Devices&, TieredManager& tiers) { tiers.latest({}); });
  EXPECT_THAT(errors, Each(HasSubstr("none is whole; step 4 of the fast tier: 1 of 3 shard files "
                                     "are nowhere; step 3")));
}

TEST_F(Tiers, AFreshStartHasNothing) {
  const auto errors = on_ranks(2, 1, {}, [&](Devices&, TieredManager& tiers) {
    EXPECT_FALSE(tiers.latest({}).has_value());
  });
  EXPECT_THAT(errors, Each(""));
}

TEST_F(Tiers, AskWhatIsNeededOfAStepThatIsNotHereYet) {
  const auto tensors = model(Mesh::line(12), "0,-", 1);
  auto errors = on_ranks(2, 1, {.local = {.copies = 1}}, [&](Devices&, TieredManager& tiers) {
    tiers.save(4, sources_of(tensors), {.user_json = R"({"loss":1})", .metrics = {{"loss", 1}}});
    tiers.close();
  });
  ASSERT_THAT(errors, Each(""));
  fs::remove_all(host(0));
  fs::remove_all(durable());
  const auto needed = [&](const CheckpointReader& step) {
    EXPECT_EQ(step.directory(), "step 4 of the fast tier");
    EXPECT_EQ(step.step(), 4);
    EXPECT_EQ(step.user_json(), R"({"loss":1})");
    EXPECT_EQ(step.metrics().at("loss"), 1);
    EXPECT_EQ(step.tensor("b").shape, Shape({60, 500}));
    std::vector<std::byte> out(60 * 500 * 4);
    EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { step.read("b", out); }),
                HasSubstr("step 4 of the fast tier: its files are not here yet"));
    return std::vector<TensorBox>{{"b", Box::whole({60, 500})}};
  };
  errors = on_ranks(2, 1, {.local = {.copies = 1}}, [&](Devices&, TieredManager& tiers) {
    const auto found = tiers.latest_as_needed(needed);
    ASSERT_TRUE(found.has_value());
    std::vector<std::byte> out(60 * 500 * 4);
    found->open({.threads = 1}).read("b", out);
    EXPECT_EQ(out, *tensors[1].data);
  });
  EXPECT_THAT(errors, Each(""));
}

// An operation that fails on one rank fails the save on all; the step before stays whole.
TEST_F(Tiers, EveryFileOperationThatFailsIsToldToAll) {
  const Mesh mesh = Mesh::line(12);
  const auto at_step = [&](std::uint64_t step) { return with_frozen(model(mesh, "0,-", step)); };
  bool met = true;
  int failed = 0;
  for (std::int64_t at = 1; met; ++at) {
    SCOPED_TRACE(testing::Message() << "operation " << at);
    for (const auto& entry : fs::directory_iterator(dir_.path())) fs::remove_all(entry);
    const auto files = std::make_shared<FaultyFileSystem>(0, Fault::no_space);
    const auto errors = run_tiers(
        dir_.path(), 2, {.local = {.copies = 1}, .devices = kDevices},
        [&](Devices& devices, TieredManager& tiers) {
          tiers.save(1, sources_of(at_step(1)));
          tiers.close();
          devices.group().barrier();
          if (devices.group().rank() == 1) files->restart(at);
          tiers.save(2, sources_of(at_step(2)));
        },
        [&](int rank) { return rank == 1 ? files : nullptr; });
    met = files->operations() >= at;
    if (errors[1].empty()) {
      EXPECT_THAT(errors, Each(""));
      EXPECT_TRUE(expect_copies("step-00000002") == 5 || met) << "each of two files links one";
      continue;
    }
    ++failed;
    EXPECT_THAT(errors, Each(HasSubstr("injected")));
    const auto later = on_ranks(2, 1, {}, [&](Devices& devices, TieredManager& tiers) {
      const auto requests = requests_for(at_step(1), mesh, "-,0");
      const auto found = tiers.latest(addressable_boxes(devices, requests));
      ASSERT_TRUE(found.has_value());
      expect_latest(devices, tiers, Tier::fast, found->step.step,
                    at_step(static_cast<std::uint64_t>(found->step.step)), requests);
      tiers.save(3, sources_of(at_step(3)));
    });
    EXPECT_THAT(later, Each(""));
  }
  EXPECT_GT(failed, 10);
}

// Rank 0 cannot read its own file from the start, to send it; rank 1 has to say so.
TEST_F(Tiers, ASaveWithoutItsCopiesFailsOnAllRanks) {
  const auto tensors = model(Mesh::line(12), "0,-", 1);
  const auto files = std::make_shared<HookedFileSystem>(
      [](std::string_view, const fs::path&) {},
      [&](const fs::path& path, std::uint64_t offset, std::size_t) {
        if (path.filename() != "shards-00000-of-00002.h5" || offset != 0) return;
        throw Error(ErrorCode::io, "read " + path.string() + ": Input/output error");
      });
  const auto errors =
      on_ranks(2, 1, {.local = {.copies = 1}, .file_system = files},
               [&](Devices&, TieredManager& tiers) { tiers.save(1, sources_of(tensors)); });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("save step 1: "),
                                 HasSubstr("copy shards-00000-of-00002.h5 from rank 0 to rank 1: "
                                           "read "),
                                 HasSubstr("Input/output error"))));
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(fs::is_empty(process_of(dir_.path(), rank)));
  }
}

/// Loses the bytes that are written to files of a name, as a bad disk does: zeros replace them.
class LosingFileSystem final : public ForwardingFileSystem {
 public:
  LosingFileSystem(fs::path folder, std::string name)
      : folder_(std::move(folder)), name_(std::move(name)) {}

 private:
  class LosingFile final : public ForwardingFile {
   public:
    using ForwardingFile::ForwardingFile;
    void write_at(std::uint64_t offset, const std::byte*, std::size_t size) override {
      const std::vector<std::byte> zeros(size);
      real().write_at(offset, zeros.data(), size);
    }
    void write_runs(std::uint64_t offset, std::span<const WriteRun> runs) override {
      File::write_runs(offset, runs);
    }
  };

  std::unique_ptr<File> wrapped(std::unique_ptr<File> file, const fs::path& path) override {
    const bool is_it = path.string().starts_with(folder_.string()) && path.filename() == name_;
    return is_it ? std::make_unique<LosingFile>(std::move(file)) : std::move(file);
  }

  const fs::path folder_;
  const std::string name_;
};

// A process's own file, and the copy that it has got.
TEST_F(Tiers, ASaveLooksAtEachFileBeforeItCommits) {
  const auto tensors = model(Mesh::line(12), "0,-", 1);
  for (const char* name : {"shards-00000-of-00002.h5", "shards-00001-of-00002.h5"}) {
    SCOPED_TRACE(name);
    for (const auto& entry : fs::directory_iterator(dir_.path())) fs::remove_all(entry);
    const auto files = std::make_shared<LosingFileSystem>(host(1), name);
    const auto errors =
        on_ranks(2, 1, {.local = {.copies = 1}, .file_system = files},
                 [&](Devices&, TieredManager& tiers) { tiers.save(1, sources_of(tensors)); });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr("description of "), HasSubstr(name))));
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(fs::is_empty(process_of(dir_.path(), rank)));
    }
  }
}

/// Notes the time of each write below a folder.
class TimedWrites final : public ForwardingFileSystem {
 public:
  struct Write {
    double seconds;
    std::size_t bytes;
  };

  TimedWrites(fs::path folder, std::shared_ptr<FakeClock> clock)
      : folder_(std::move(folder)), clock_(std::move(clock)) {}

  std::vector<Write> writes() const {
    const MutexLock lock(mutex_);
    return writes_;
  }

 private:
  class TimedFile final : public ForwardingFile {
   public:
    TimedFile(std::unique_ptr<File> real, TimedWrites& owner)
        : ForwardingFile(std::move(real)), owner_(owner) {}
    void write_at(std::uint64_t offset, const std::byte* data, std::size_t size) override {
      {
        const MutexLock lock(owner_.mutex_);
        owner_.writes_.push_back({owner_.clock_->seconds(), size});
      }
      real().write_at(offset, data, size);
    }
    void write_runs(std::uint64_t offset, std::span<const WriteRun> runs) override {
      File::write_runs(offset, runs);
    }

   private:
    TimedWrites& owner_;
  };

  std::unique_ptr<File> wrapped(std::unique_ptr<File> file, const fs::path& path) override {
    if (path.string().find(folder_.string()) != 0) return file;
    return std::make_unique<TimedFile>(std::move(file), *this);
  }

  const fs::path folder_;
  const std::shared_ptr<FakeClock> clock_;
  mutable Mutex mutex_;
  std::vector<Write> writes_ SHARDWISE_GUARDED_BY(mutex_);
};

// The clock goes on only if the limiter waits.
TEST_F(Tiers, TheDrainWritesNoFasterThanItsLimit) {
  constexpr std::int64_t kRate = 100'000;
  const auto clock = std::make_shared<FakeClock>();
  const auto files = std::make_shared<TimedWrites>(durable(), clock);
  const HostTensor w = host_tensor("w", DType::f32, {600, 1000}, "12", "0,-", Values::noise);
  TieredManager tiers(host(0), durable(),
                      {.drain = {.bytes_per_second = kRate, .clock = clock},
                       .write = {.threads = 2},
                       .devices = kDevices,
                       .file_system = files});
  tiers.save(1, {w.source()}, {.codec = Codec::none});
  EXPECT_EQ(fs::exists(host(0) / "process-00000/step-00000001"), true);
  tiers.close();
  double total = 0, largest = 0;
  for (const auto& write : files->writes()) {
    largest = std::max(largest, static_cast<double>(write.bytes));
  }
  for (const auto& [seconds, bytes] : files->writes()) {
    EXPECT_LE(total, seconds * kRate + largest) << "after " << seconds << " s";
    total += static_cast<double>(bytes);
  }
  EXPECT_GT(total, 600 * 1000 * 4);
  EXPECT_GE(clock->seconds(), (total - 2 * largest) / kRate);
  EXPECT_TRUE(verify_checkpoint(durable() / "step-00000001").ok());
}

// So no worker waits for the fast save, which may be under way for long.
TEST_F(Tiers, NothingIsDoneInTheDurableRootUntilTheFastSaveHasEnded) {
  std::atomic<bool> saves = false;
  std::atomic<int> early = 0, late = 0;
  const auto files =
      std::make_shared<HookedFileSystem>([&](std::string_view, const fs::path& path) {
        if (!saves || path.string().find(durable().string()) != 0) return;
        ++(fs::exists(host(0) / "process-00000/step-00000001") ? late : early);
      });
  TieredManager tiers(host(0), durable(),
                      {.write = {.threads = 2}, .devices = kDevices, .file_system = files});
  saves = true;
  std::latch asked(1), answer(1);
  std::atomic<bool> is_first = true;
  const ArraySpec spec{DType::f32, {12}, Sharding(Mesh::line(12), PartitionSpec::parse("0"))};
  const PendingSave pending =
      tiers.save_async(1, {callback_tensor("w", spec, [&](const Box&, std::span<std::byte> out) {
                         if (is_first.exchange(false)) {
                           asked.count_down();
                           answer.wait();
                         }
                         std::ranges::fill(out, std::byte{1});
                       })});
  asked.wait();
  answer.count_down();
  pending.wait();
  tiers.close();
  EXPECT_EQ(early, 0);
  EXPECT_GT(late, 0);
}

TEST_F(Tiers, DestructionTellsThatAStepHasNotComeToTheDurableRoot) {
  const auto full =
      std::make_shared<HookedFileSystem>([&](std::string_view operation, const fs::path& path) {
        if (operation == "create" && path.extension() == ".h5" &&
            path.string().starts_with(durable().string())) {
          throw Error(ErrorCode::io, "No space left on device");
        }
      });
  const HostTensor w = host_tensor("w", DType::f32, {12}, "12", "0");
  testing::internal::CaptureStderr();
  {
    TieredManager tiers(host(0), durable(), {.devices = kDevices, .file_system = full});
    tiers.save(1, {w.source()});
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "shardwise: save step 1: No space left on device; found by a destructor: close() "
            "throws it\n");
}

TEST_F(Tiers, RefusesWhatCannotWork) {
  const auto open = [&](int ranks, int per_host, const TierOptions& options) {
    return on_ranks(ranks, per_host, options, [](Devices&, TieredManager&) {});
  };
  EXPECT_THAT(open(2, 1, {.local = {.copies = 2}}), Each(HasSubstr("more of them than copies")));
  EXPECT_THAT(open(3, 2, {.local = {.copies = 1}}), Each(HasSubstr("needed are whole hosts")));
  EXPECT_THAT(open(2, 1, {.keep = {.fast = 1}}), Each(HasSubstr("keep_last is 1")));
  EXPECT_THAT(open(2, 1, {.drain = {.every = 0}}), Each(HasSubstr("drain_every is 0")));
  const HostTensor tensor = host_tensor("w", DType::f32, {12}, "12", "0");
  const auto errors = on_ranks(2, 1, {}, [&](Devices&, TieredManager& tiers) {
    tiers.save(1, {tensor.source()});
    tiers.latest(std::vector<TensorBox>{{"v", Box::whole({12})}});
  });
  EXPECT_THAT(errors, Each(HasSubstr("step 1 has no tensor \"v\"")));
}

}  // namespace
}  // namespace shardwise
