// Whatever goes wrong on one rank: all ranks are told, nothing is listed, earlier steps stay, and
// the next save works.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <set>

#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/runtime/process/detail/message.h"
#include "testing/errors.h"
#include "testing/faulty_file_system.h"
#include "testing/group_checkpoint.h"
#include "testing/hooked_file_system.h"
#include "testing/root_names.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::AnyOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

std::vector<HostTensor> model(std::uint64_t seed) {
  return {host_tensor("a", DType::f32, {9, 50}, "data=6", "data,-", Values::noise, seed),
          host_tensor("b", DType::f32, {300, 300}, "data=6", "data,-", Values::noise, seed),
          host_tensor("c", DType::bf16, {40}, "data=6", "-", Values::ramp, seed)};
}

class GroupFaults : public testing::Test {
 protected:
  GroupFaults() {
    CheckpointManager manager(dir_.path());
    manager.save(1, sources_of(model(1)));
  }

  /// Saves step 2 with the faults. It is there on all ranks, or on none; step 1 is there anyway,
  /// and step 3 is saved as if nothing had been. The errors of step 2.
  std::vector<std::string> save(const GroupSaveOptions& options) {
    const std::filesystem::path second = dir_ / "step-00000002";
    const GroupOutcome outcome = group_save(dir_.path(), 2, sources_of(model(2)), options);
    if (std::filesystem::exists(second)) {
      for (std::size_t rank = 0; rank < outcome.errors.size(); ++rank) {
        const std::string& error = outcome.errors[rank];
        EXPECT_TRUE(error.empty() || error == "stopped") << rank << ": " << error;
      }
      EXPECT_TRUE(holds(CheckpointReader(second), model(2)));
      EXPECT_THAT(verify_checkpoint(second).damage, IsEmpty());
    } else {
      EXPECT_TRUE(outcome.all_failed());
    }
    std::filesystem::remove_all(second);
    EXPECT_TRUE(holds(CheckpointReader(dir_ / "step-00000001"), model(1)));
    const GroupOutcome third = group_save(dir_.path(), 3, sources_of(model(3)), {.ranks = 2});
    EXPECT_THAT(third.errors, Each(""));
    EXPECT_TRUE(holds(CheckpointReader(dir_ / "step-00000003"), model(3)));
    std::filesystem::remove_all(dir_ / "step-00000003");
    EXPECT_EQ(root_names(dir_.path()),
              (std::vector<std::string>{"stats-step-00000001.json", "stats-step-00000003.json",
                                        "step-00000001"}));
    return outcome.errors;
  }

  /// The same, with a timeout that is long enough for those who are not to miss it. What failed has
  /// failed by it, on all ranks.
  template <class InOrder>
  std::vector<std::string> save_in_time(GroupSaveOptions options, milliseconds timeout,
                                        const InOrder& in_order) {
    const auto run = [&](milliseconds time) {
      options.timeout = time;
      return save(options);
    };
    auto errors = with_patience(timeout, run, in_order);
    if (!errors[0].empty()) {
      const std::string within = "did not come within " + detail::seconds_text(options.timeout);
      EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank "), HasSubstr(within))));
    }
    return errors;
  }

  const TempDir dir_;
};

constexpr int kRanks = 3;

bool all_missed(const std::vector<std::string>& errors) {
  return std::ranges::all_of(errors, [](const std::string& error) {
    return error.find("did not come within") != std::string::npos;
  });
}

TEST_F(GroupFaults, EveryLostMessageIsNoticed) {
  for (int faulty = 0; faulty < kRanks; ++faulty) {
    for (std::int64_t message = 1; message <= (faulty == 0 ? 4 : 1); ++message) {
      SCOPED_TRACE(testing::Message() << "message " << message << " of rank " << faulty);
      GroupSaveOptions options{.ranks = kRanks};
      options.faults = [&](int rank) {
        return rank == faulty ? SocketFaults{.lose = message} : SocketFaults();
      };
      // Two notices and two reports; who misses the outcome finds it on the disk.
      const bool must_fail = faulty != 0 || message <= 2;
      const auto errors = save_in_time(options, milliseconds(1000), [&](const auto& found) {
        return must_fail ? all_missed(found) : found[0].empty();
      });
      EXPECT_EQ(!errors[0].empty(), must_fail);
    }
  }
}

TEST_F(GroupFaults, EveryDeathIsNoticed) {
  for (int faulty = 0; faulty < kRanks; ++faulty) {
    for (std::int64_t message = 1; message <= (faulty == 0 ? 4 : 1); ++message) {
      SCOPED_TRACE(testing::Message() << "instead of message " << message << " of rank " << faulty);
      GroupSaveOptions options{.ranks = kRanks};
      options.faults = [&](int rank) {
        return rank == faulty ? SocketFaults{.stop = message} : SocketFaults();
      };
      const auto errors = save(options);
      for (int rank = 0; rank < kRanks; ++rank) {
        const std::string& error = errors[static_cast<std::size_t>(rank)];
        if (rank == faulty || error.empty()) continue;
        // That the attempt has gone is also seen: threads clean up, dead processes do not.
        EXPECT_THAT(error, AnyOf(HasSubstr("rank " + std::to_string(faulty) + " has gone"),
                                 HasSubstr("which rank 0 has made, is not there")));
      }
    }
  }
}

TEST_F(GroupFaults, EveryFileOperationThatFailsIsToldToAll) {
  for (int faulty = 0; faulty < kRanks; ++faulty) {
    for (const Fault fault : {Fault::io, Fault::no_space}) {
      bool met = true;
      int told = 0;
      for (std::int64_t at = 1; met; ++at) {
        SCOPED_TRACE(testing::Message() << "operation " << at << " of rank " << faulty);
        const auto files = std::make_shared<FaultyFileSystem>(0, fault);
        GroupSaveOptions options{.ranks = kRanks};
        options.file_system = [&](int rank) {
          return rank == faulty ? std::static_pointer_cast<FileSystem>(files) : posix_file_system();
        };
        options.when_open = [&](int rank) {
          if (rank == faulty) files->restart(at);
        };
        const auto errors = save(options);
        met = files->operations() >= at;
        const std::string& own = errors[static_cast<std::size_t>(faulty)];
        if (own.empty()) continue;  // the save does not need it
        ++told;
        const std::string cause = own.substr(own.find("injected"));
        EXPECT_THAT(errors, Each(HasSubstr(cause)));
      }
      EXPECT_GT(told, 5);
    }
  }
}

TEST_F(GroupFaults, WhatASourceThrowsIsToldToAll) {
  GroupSaveOptions options{.ranks = kRanks};
  options.sources = [&](int rank) {
    auto sources = sources_of(model(2));
    if (rank == 1) {
      sources[1] = callback_tensor("b", model(2)[1].spec, [](const Box&, std::span<std::byte>) {
        throw std::runtime_error("the device has fallen off the bus");
      });
    }
    return sources;
  };
  const auto errors = save(options);
  EXPECT_EQ(errors[1], "the device has fallen off the bus");
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_THAT(errors[rank], HasSubstr("rank 1: save step 2: the device has fallen off the bus"));
  }
}

// As a server that loses bytes that it has taken: the rank reports a longer file than there is.
TEST_F(GroupFaults, AFileThatIsNotWhatItsRankSaysIsNotPublished) {
  GroupSaveOptions options{.ranks = kRanks};
  options.file_system = [](int rank) -> std::shared_ptr<FileSystem> {
    if (rank != 1) return nullptr;
    return std::make_shared<HookedFileSystem>(
        [](std::string_view operation, const std::filesystem::path& path) {
          const std::filesystem::path file = path / "shards-00001-of-00003.h5";
          if (operation == "sync directory" && std::filesystem::exists(file)) {
            std::filesystem::resize_file(file, 4096);
          }
        });
  };
  EXPECT_THAT(save(options), Each(AllOf(HasSubstr("shards-00001-of-00003.h5"),
                                        HasSubstr("found 4096 bytes, needed"))));
}

// A rank that never comes, and one whose source hangs until the others have given up.
TEST_F(GroupFaults, AHangEndsAtTheDeadline) {
  std::string within;
  const auto run = [&](milliseconds timeout) {
    within = "did not come within " + detail::seconds_text(timeout);
    std::latch others_ended(kRanks - 1);
    return run_ranks(kRanks, {}, [&](std::shared_ptr<SocketTransport> transport) {
      const int rank = transport->rank();
      struct Ended {
        std::latch* latch;
        ~Ended() {
          if (latch != nullptr) latch->count_down();
        }
      } ended{rank == 2 ? nullptr : &others_ended};
      CheckpointManager manager(dir_.path(),
                                {.group = ProcessGroup(std::move(transport), timeout)});
      auto sources = sources_of(model(2));
      if (rank == 2) {
        const auto wait = [&](const Box&, std::span<std::byte>) { others_ended.wait(); };
        sources[0] = callback_tensor("a", model(2)[0].spec, wait);
      }
      manager.save(2, std::move(sources));
    });
  };
  const auto errors = with_patience(milliseconds(300), run, [](const auto& found) {
    return all_missed(found) && found[0].find("rank 2 of 3") != std::string::npos;
  });
  EXPECT_THAT(errors, Each(HasSubstr(within)));
  EXPECT_THAT(errors[0], HasSubstr("rank 2 of 3"));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "step-00000002"));
}

// Who had not seen the first error gets it from the next save, and so do all others.
TEST_F(GroupFaults, AnErrorThatNobodySawIsTheNextSaves) {
  std::latch told(kRanks);
  const auto errors = run_ranks(kRanks, {}, [&](std::shared_ptr<SocketTransport> transport) {
    const int rank = transport->rank();
    CheckpointManager manager(dir_.path(), {.group = ProcessGroup(std::move(transport))});
    auto sources = sources_of(model(2));
    if (rank == 1) {
      sources[0] = callback_tensor("a", model(2)[0].spec, [](const Box&, std::span<std::byte>) {
        throw std::runtime_error("no power");
      });
    }
    const PendingSave pending = manager.save_async(2, std::move(sources));
    if (rank != 2) {
      EXPECT_THROW(pending.wait(), std::exception);
    }
    told.arrive_and_wait();
    try {
      manager.save(3, sources_of(model(3)));
    } catch (const std::exception& e) {
      EXPECT_THAT(e.what(), HasSubstr("no power"));
      if (rank == 2) {
        EXPECT_THAT(e.what(), HasSubstr("rank 1: save step 2"));
      }
      manager.save(4, sources_of(model(4)));
      return;
    }
    ADD_FAILURE() << "step 3 was saved by rank " << rank;
  });
  EXPECT_THAT(errors, Each(""));
  EXPECT_FALSE(std::filesystem::exists(dir_ / "step-00000003"));
  EXPECT_TRUE(holds(CheckpointReader(dir_ / "step-00000004"), model(4)));
}

}  // namespace
}  // namespace shardwise
