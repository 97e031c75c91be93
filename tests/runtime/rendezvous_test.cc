#include "shardwise/runtime/process/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

#include "testing/socket_transport.h"

namespace shardwise {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

Bytes byte(int value) { return {static_cast<std::byte>(value)}; }

std::vector<std::string> on_ranks(int ranks, const std::function<void(const Rendezvous&)>& run) {
  return run_ranks(ranks, {}, [&](std::shared_ptr<SocketTransport> transport) {
    run(GroupRendezvous(ProcessGroup(std::move(transport)), "count"));
  });
}

TEST(Rendezvous, GivesAllRanksWhatRankZeroMadeOfAllWork) {
  EXPECT_THAT(on_ranks(4,
                       [](const Rendezvous& ranks) {
                         const Bytes said = ranks.agree(
                             [&] { return byte(10 + ranks.rank()); },
                             [&](const std::vector<Bytes>& all) {
                               EXPECT_EQ(ranks.rank(), 0);
                               EXPECT_THAT(all,
                                           ElementsAre(byte(10), byte(11), byte(12), byte(13)));
                               return byte(46);
                             });
                         EXPECT_EQ(said, byte(46));
                         ranks.check();
                       }),
              Each(""));
}

TEST(Rendezvous, WithoutWorkRankZeroSpeaksAlone) {
  EXPECT_THAT(on_ranks(3,
                       [](const Rendezvous& ranks) {
                         EXPECT_EQ(ranks.agree(nullptr,
                                               [](const std::vector<Bytes>& all) {
                                                 EXPECT_TRUE(all.empty());
                                                 return byte(7);
                                               }),
                                   byte(7));
                       }),
              Each(""));
}

TEST(Rendezvous, TellsAllRanksWhatWorkOrMergeThrew) {
  for (const int failing : {0, 2}) {
    EXPECT_THAT(on_ranks(3,
                         [&](const Rendezvous& ranks) {
                           ranks.agree(
                               [&]() -> Bytes {
                                 if (ranks.rank() == failing) throw std::runtime_error("no work");
                                 return {};
                               },
                               [](const std::vector<Bytes>&) { return Bytes(); });
                         }),
                Each(HasSubstr("no work")));
  }
  const auto errors = on_ranks(3, [&](const Rendezvous& ranks) {
    try {
      ranks.agree([] { return Bytes(); }, [](const std::vector<Bytes>&) -> Bytes { throw 5; });
    } catch (int thrown) {  // on rank 0, as it was
      throw std::runtime_error("the number " + std::to_string(thrown));
    }
  });
  EXPECT_THAT(errors[0], HasSubstr("the number 5"));
  EXPECT_THAT((std::vector{errors[1], errors[2]}),
              Each(HasSubstr("count: a function threw something that is no exception")));
}

TEST(Rendezvous, OfOneProcessRunsInline) {
  const GroupRendezvous alone(ProcessGroup(), "count");
  EXPECT_EQ(alone.size(), 1);
  EXPECT_EQ(
      alone.agree([] { return byte(1); }, [](const std::vector<Bytes>& all) { return all.at(0); }),
      byte(1));
}

}  // namespace
}  // namespace shardwise
