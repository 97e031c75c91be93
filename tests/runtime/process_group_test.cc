#include "shardwise/runtime/process/process_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <latch>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "shardwise/runtime/process/detail/message.h"
#include "testing/errors.h"
#include "testing/group_operations.h"
#include "testing/socket_transport.h"

namespace shardwise {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(ProcessGroup, OfOneProcessNeedsNothing) {
  const ProcessGroup group;
  EXPECT_EQ(group.rank(), 0);
  EXPECT_EQ(group.size(), 1);
  run_operations(group, 1, 30);
  group.abort("enough");
  EXPECT_EQ(message_of(ErrorCode::cancelled, [&] { group.barrier(); }),
            "barrier of rank 0 of 1: rank 0: enough");
}

TEST(ProcessGroup, GivesEveryRankWhatItIsToGet) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    for (std::uint32_t seed = 1; seed <= 8; ++seed) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, seed " << seed);
      const auto errors = run_ranks(
          ranks,
          [&](int rank) {
            const bool reorder = seed % 2 == 0;
            return SocketFaults{.reorder_seed =
                                    reorder ? seed * 10 + static_cast<unsigned>(rank) : 0};
          },
          [&](std::shared_ptr<SocketTransport> transport) {
            run_operations(ProcessGroup(std::move(transport)), seed, 30);
          });
      EXPECT_THAT(errors, Each(""));
    }
  }
}

TEST(ProcessGroup, DuplicatesDoNotMixWhateverThreadsDo) {
  const auto errors = run_ranks(
      3, [](int rank) { return SocketFaults{.reorder_seed = 7u + static_cast<unsigned>(rank)}; },
      [](std::shared_ptr<SocketTransport> transport) {
        const ProcessGroup group(std::move(transport));
        std::vector<std::thread> threads;
        for (std::uint32_t t = 0; t < 3; ++t) {
          threads.emplace_back([t, own = group.duplicate()] { run_operations(own, 100 + t, 40); });
        }
        const ProcessGroup doomed = group.duplicate();
        if (group.rank() == 1) doomed.abort("only this one");
        run_operations(group, 99, 40);
        for (std::thread& thread : threads) thread.join();
        EXPECT_THAT(message_of(ErrorCode::cancelled, [&] { doomed.barrier(); }),
                    HasSubstr("rank 1: only this one"));
      });
  EXPECT_THAT(errors, Each(""));
}

/// Runs one of each operation; the messages do not matter.
void run_each_operation(const ProcessGroup& group) {
  const int size = group.size(), next = (group.rank() + 1) % size;
  group.broadcast({}, size - 1);
  group.gather({}, 1);
  const int before = (group.rank() + size - 1) % size;
  group.exchange({{next, {}}}, std::vector<int>{before});
  group.all_gather({});
  run_exchange(group, 4, 2);
  group.agree("count", {});
  group.barrier();
}

constexpr int kRanksWithFaults = 4;
constexpr milliseconds kNever(600'000);  // a deadline that no machine is too slow for

/// A run of each operation.
struct FaultyRun {
  std::vector<std::string> errors;
  std::int64_t sent;  // messages, by the rank with faults
  milliseconds deadline;
};

FaultyRun run_with_fault(int faulty, const SocketFaults& faults, milliseconds deadline) {
  std::int64_t sent = 0;
  std::latch ended(kRanksWithFaults);
  auto errors = run_ranks(
      kRanksWithFaults, [&](int rank) { return rank == faulty ? faults : SocketFaults(); },
      [&](std::shared_ptr<SocketTransport> transport) {
        // All stay until the last one has ended: a socket that is closed says something, too.
        struct Ended {
          const SocketTransport& own;
          std::int64_t* sent;
          std::latch& all;
          ~Ended() {
            if (sent != nullptr) *sent = own.sent();
            all.arrive_and_wait();
          }
        } at_end{*transport, transport->rank() == faulty ? &sent : nullptr, ended};
        run_each_operation(ProcessGroup(transport, deadline));
      });
  return {std::move(errors), sent, deadline};
}

/// Runs that with one fault for every message that a rank sends. What ranks say who noticed must
/// name a rank and hold `cause`; those that did not notice had ended before.
void check_every_message(const std::function<std::string(const FaultyRun&)>& cause,
                         milliseconds deadline,
                         const std::function<SocketFaults(std::int64_t)>& fault) {
  for (int faulty = 0; faulty < kRanksWithFaults; ++faulty) {
    const FaultyRun without = run_with_fault(faulty, {}, kNever);
    EXPECT_THAT(without.errors, Each(""));
    EXPECT_GT(without.sent, 0);
    for (std::int64_t message = 1; message <= without.sent; ++message) {
      SCOPED_TRACE(testing::Message() << "message " << message << " of rank " << faulty);
      const FaultyRun run = with_patience(
          deadline, [&](milliseconds time) { return run_with_fault(faulty, fault(message), time); },
          [&](const FaultyRun& found) { return found.sent >= message; });
      const std::vector<std::string>& errors = run.errors;
      EXPECT_GE(run.sent, message);
      bool noticed = false;
      for (std::size_t rank = 0; rank < errors.size(); ++rank) {
        if (errors[rank].empty() || errors[rank] == "stopped") continue;
        noticed = true;
        EXPECT_THAT(errors[rank], AllOf(HasSubstr("rank " + std::to_string(rank) + " of 4: "),
                                        HasSubstr(cause(run))));
      }
      EXPECT_TRUE(noticed);
    }
  }
}

TEST(ProcessGroup, ALostMessageEndsInAnErrorThatNamesWhoDidNotCome) {
  check_every_message(
      [](const FaultyRun& run) {
        return "did not come within " + detail::seconds_text(run.deadline);
      },
      milliseconds(150), [](std::int64_t message) { return SocketFaults{.lose = message}; });
}

// Which is seen at once, whatever the deadline.
TEST(ProcessGroup, ARankThatDiesIsNamed) {
  check_every_message([](const FaultyRun&) { return "has gone: "; }, kNever,
                      [](std::int64_t message) { return SocketFaults{.stop = message}; });
}

TEST(ProcessGroup, NamesAllWhoDidNotComeInTime) {
  std::string within;
  const auto run = [&](milliseconds deadline) {
    within = " did not come within " + detail::seconds_text(deadline);
    std::latch ended(2);
    return run_ranks(5, {}, [&](std::shared_ptr<SocketTransport> transport) {
      const ProcessGroup group(std::move(transport), deadline);
      if (group.rank() == 1 || group.rank() == 4) {
        ended.wait();  // alive, but elsewhere
        return;
      }
      try {
        group.barrier();
      } catch (...) {
        if (group.rank() != 0) ended.count_down();
        throw;
      }
    });
  };
  const auto errors =
      with_patience(milliseconds(150), run, [](const std::vector<std::string>& found) {
        return std::ranges::none_of(found, [](const std::string& error) {
          return error.find("did not come") != std::string::npos &&
                 error.find("ranks 1 and 4 of 5") == std::string::npos;
        });
      });
  EXPECT_EQ(errors[0], "barrier of rank 0 of 5: ranks 1 and 4 of 5" + within);
  for (const std::size_t rank : {2u, 3u}) {
    EXPECT_EQ(errors[rank], "barrier of rank " + std::to_string(rank) +
                                " of 5: rank 0: barrier: ranks 1 and 4 of 5" + within);
  }
}

TEST(ProcessGroup, AnAbortReachesAllWhoWaitAndAllWhoComeLater) {
  const auto errors = run_ranks(4, {}, [](std::shared_ptr<SocketTransport> transport) {
    const ProcessGroup group(std::move(transport));
    if (group.rank() == 2) {
      group.abort("disk full");
      group.abort("a later reason");
    } else {
      EXPECT_THAT(message_of(ErrorCode::cancelled, [&] { group.barrier(); }),
                  HasSubstr("rank 2: disk full"));
    }
    EXPECT_THAT(message_of(ErrorCode::cancelled, [&] { group.broadcast({}); }),
                HasSubstr("rank 2: disk full"));
    EXPECT_THAT(message_of(ErrorCode::cancelled, [&] { group.check(); }), HasSubstr("disk full"));
  });
  EXPECT_THAT(errors, Each(""));
}

/// Rank 1's transport: rank 0 has ended, and rank 2's word about it has not come yet.
class ReasonOnItsWay final : public Transport {
 public:
  int rank() const override { return 1; }
  int size() const override { return 3; }
  void send(int, const MessageKey&, std::vector<std::byte>) override {}
  std::optional<ReceivedMessage> receive_any(std::span<const AwaitedMessage> awaited,
                                             std::chrono::microseconds wait) override {
    if (awaited.front().from == 0) throw Error(ErrorCode::io, "rank 0 has gone");
    has_come_ = wait > milliseconds(0);
    return {};
  }
  void abort(std::uint64_t, const std::string&) noexcept override {}
  std::optional<std::string> aborted(std::uint64_t) override {
    return has_come_ ? std::optional<std::string>("rank 2: disk full") : std::nullopt;
  }
  bool flush(milliseconds) override { return true; }

 private:
  bool has_come_ = false;
};

TEST(ProcessGroup, WhereARankHasGoneTheReasonIsThatOfTheRankThatHasOne) {
  const ProcessGroup group(std::make_shared<ReasonOnItsWay>());
  EXPECT_EQ(message_of(ErrorCode::cancelled, [&] { group.barrier(); }),
            "barrier of rank 1 of 3: rank 2: disk full");
}

TEST(ProcessGroup, AnExchangeWaitsForNothingOnlyInError) {
  ProcessGroup::Exchange exchange = ProcessGroup().begin_exchange(1);
  EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { exchange.receive({}, true); }),
            "receive in an exchange: found no message to wait for, needed one or more");
}

TEST(ProcessGroup, AnAbortEndsDuplicatesAndNotWhatTheyAreDuplicatesOf) {
  const auto errors = run_ranks(3, {}, [](std::shared_ptr<SocketTransport> transport) {
    const ProcessGroup group(std::move(transport));
    const ProcessGroup second = group.duplicate(), third = second.duplicate();
    const ProcessGroup sibling = group.duplicate();
    const auto is_ended = [](const ProcessGroup& ended) {
      return message_of(ErrorCode::cancelled, [&] { ended.barrier(); });
    };
    if (group.rank() == 1) second.abort("enough");
    EXPECT_THAT(is_ended(third), HasSubstr("rank 1: enough"));
    EXPECT_THAT(is_ended(second), HasSubstr("rank 1: enough"));
    sibling.barrier();
    group.barrier();
    if (group.rank() == 2) group.abort("all of it");
    EXPECT_THAT(is_ended(sibling), HasSubstr("rank 2: all of it"));
    EXPECT_THAT(is_ended(group.duplicate()), HasSubstr("rank 2: all of it"));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(ProcessGroup, ATimeoutOfOneOperationIsItsOwn) {
  const auto errors = run_ranks(2, {}, [](std::shared_ptr<SocketTransport> transport) {
    const ProcessGroup group(std::move(transport));
    if (group.rank() == 0) group.barrier(milliseconds(50));
    if (group.rank() == 1) {
      EXPECT_THAT(message_of(ErrorCode::cancelled, [&] { group.broadcast({}, 0); }),
                  HasSubstr("within 0.05 s"));
    }
  });
  EXPECT_THAT(errors[0], HasSubstr("rank 1 of 2 did not come within 0.05 s"));
}

TEST(ProcessGroup, NoRankSendsTheBytesOfAllToMoreThanAFew) {
  // 16 ranks with 1,000 bytes each; log2(16) is 4.
  constexpr int kRanks = 16;
  constexpr std::int64_t kBytes = 1000;
  std::vector<std::int64_t> sent(kRanks);
  const auto errors = run_ranks(kRanks, {}, [&](std::shared_ptr<SocketTransport> transport) {
    const int rank = transport->rank();
    const ProcessGroup group(transport);
    const auto own = static_cast<std::byte>(rank);
    const std::vector<Bytes> parts = group.all_gather(Bytes(kBytes, own));
    for (int r = 0; r < kRanks; ++r) {
      EXPECT_EQ(parts[static_cast<std::size_t>(r)], Bytes(kBytes, static_cast<std::byte>(r)));
    }
    sent[static_cast<std::size_t>(rank)] = transport->sent_bytes();
  });
  EXPECT_THAT(errors, Each(""));
  constexpr std::int64_t kOverhead = 100;  // for each message, and each part
  for (const std::int64_t bytes : sent) EXPECT_LE(bytes, 4 * (kRanks * (kBytes + kOverhead)));
  EXPECT_LE(sent[1], kBytes + kOverhead);
}

/// Operations in which every rank but 0 first sends it a message, if there are two ranks.
constexpr int kSendingOperations = 7;
void run_sending_operation(const ProcessGroup& group, int operation) {
  const int size = group.size(), next = (group.rank() + 1) % size;
  const int before = (group.rank() + size - 1) % size;
  const std::vector<ProcessGroup::Fact> facts{{"steps", static_cast<std::uint64_t>(operation)}};
  switch (operation) {
    case 0:
      group.gather({});
      break;
    case 1:
      group.all_gather({});
      break;
    case 2:
      group.barrier();
      break;
    case 3:
      group.exchange({{next, {}}}, std::vector<int>{before});
      break;
    case 4:
      group.exchange({{next, {}}}, std::vector<int>{before}, {}, 7);
      break;
    default:
      group.agree("count", facts);
  }
}

TEST(ProcessGroup, RanksInDifferentOperationsGetAnErrorAndNoBytesOfAnother) {
  const auto run = [](int ranks, int operation, int odd_rank, int odd_operation) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks in operation " << operation << ", rank "
                                    << odd_rank << " in " << odd_operation);
    // A rank that has only sent goes on to a barrier, as a job would to its next operation.
    const auto errors = run_ranks(ranks, {}, [&](std::shared_ptr<SocketTransport> transport) {
      const ProcessGroup group(std::move(transport));
      run_sending_operation(group, group.rank() == odd_rank ? odd_operation : operation);
      group.barrier();
    });
    EXPECT_THAT(errors, Each(AllOf(HasSubstr(" rank "), HasSubstr("needed"))));
  };
  for (int a = 0; a < kSendingOperations; ++a) {
    for (int b = 0; b < kSendingOperations; ++b) {
      if (a != b) run(2, a, 1, b);
      if (a == b || a > 2 || b > 2) continue;
      for (int odd = 0; odd < 4; ++odd) run(4, a, odd, b);
    }
  }
}

TEST(ProcessGroup, AgreementNamesWhatDiffersAndWhere) {
  const auto run = [](int ranks, int other, const std::string& subject, std::uint64_t value) {
    return run_ranks(ranks, {}, [&](std::shared_ptr<SocketTransport> transport) {
      const ProcessGroup group(std::move(transport));
      const bool differs = group.rank() == other;
      const std::vector<ProcessGroup::Fact> facts{{"operations", 12},
                                                  {"tensors held", differs ? value : 3}};
      for (int i = 0; i < 3; ++i) group.agree(differs ? subject : "run a program", facts);
      group.barrier();
    });
  };
  for (int ranks = 1; ranks <= 5; ++ranks) {
    EXPECT_THAT(run(ranks, -1, "", 0), Each(""));
    for (int other = 0; other < ranks && ranks > 1; ++other) {
      SCOPED_TRACE(testing::Message() << "rank " << other << " of " << ranks);
      EXPECT_THAT(run(ranks, other, "run a program", 4),
                  Each(AllOf(HasSubstr("run a program: found tensors held "),
                             HasSubstr("rank " + std::to_string(other)))));
      EXPECT_THAT(run(ranks, other, "move an array", 3), Each(HasSubstr("\"move an array\"")));
    }
  }
}

TEST(ProcessGroup, AMessageThatHasChangedIsRefused) {
  const auto errors = run_ranks(2, {}, [](std::shared_ptr<SocketTransport> transport) {
    const ProcessGroup group(transport);
    if (transport->rank() == 1) {
      Bytes message(1000, std::byte{1});
      detail::seal(message, {detail::Operation::gather, 0});
      message[500] ^= std::byte{4};
      transport->send(0, {0, 0}, message);
      EXPECT_THAT(message_of(ErrorCode::cancelled,
                             [&] {
                               group.gather({}, 1);
                               group.barrier();
                             }),
                  HasSubstr("another hash"));
      return;
    }
    EXPECT_THAT(
        message_of(ErrorCode::cancelled, [&] { group.gather({}); }),
        HasSubstr("a message of rank 1: read a message: found 1016 bytes with another hash"));
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(ProcessGroup, AMessageOfAnotherMakeIsRefused) {
  const auto errors = run_ranks(2, {}, [](std::shared_ptr<SocketTransport> transport) {
    if (transport->rank() == 1) {
      Bytes foreign(40);
      detail::seal(foreign);
      transport->send(0, {0, 0}, foreign);
      const ProcessGroup group(transport);
      EXPECT_THAT(message_of(ErrorCode::cancelled,
                             [&] {
                               group.gather({}, 1);
                               group.barrier();
                             }),
                  HasSubstr("needed a whole message"));
      return;
    }
    const ProcessGroup group(transport);
    EXPECT_THAT(message_of(ErrorCode::cancelled, [&] { group.gather({}); }),
                HasSubstr("a message of rank 1: read a message: found 40 bytes without an end"));
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace shardwise
