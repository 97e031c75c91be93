#include "shardwise/checkpoint/detail/together/same_requests.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "testing/errors.h"
#include "testing/socket_transport.h"

namespace shardwise::detail {
namespace {

using testing::Each;
using testing::ElementsAre;

TensorRequest request(const std::string& name, const std::string& spec, Shape shape = {8, 4}) {
  return {name, {DType::f32, shape, Sharding(Mesh::parse("x=4"), PartitionSpec::parse(spec))}};
}

TEST(SameRequests, HaveOneOrderHoweverTheyAreListed) {
  std::vector<TensorRequest> requests{request("b", "x,-"), request("a", "x,-"), request("b", "-,x"),
                                      request("c", "-,-")};
  const auto in_order = [&] {
    std::vector<std::string> texts;
    for (const std::size_t r : common_order(requests)) {
      texts.push_back(requests[r].name + " " + requests[r].spec.sharding.spec().to_string());
    }
    return texts;
  };
  const std::vector<std::string> first = in_order();
  EXPECT_THAT(first, ElementsAre("a x,-", "b -,x", "b x,-", "c -,-"));
  const RestoreList list = restore_list("id", 2, requests);
  for (int turn = 0; turn < 3; ++turn) {
    std::rotate(requests.begin(), requests.begin() + 1, requests.end());
    EXPECT_EQ(in_order(), first);
    EXPECT_EQ(restore_list("id", 2, requests), list);
  }
}

TEST(SameRequests, MessagesArriveAsTheyWereSent) {
  const RestoreList list = restore_list("id", 2, std::vector{request("a\"", "x,-")});
  EXPECT_EQ(decode_restore_list(encode(list)), list);
  const RestoreDigest digest{{1, 2}, "no fit"};
  EXPECT_EQ(decode_restore_digest(encode(digest)), digest);
  for (const RestoreVerdict& verdict :
       {RestoreVerdict(), RestoreVerdict{3, ""}, RestoreVerdict{-1, "no fit"}}) {
    EXPECT_EQ(decode_restore_verdict(encode(verdict)), verdict);
  }
  Bytes damaged = encode(digest);
  damaged.front() ^= std::byte{1};
  message_of(ErrorCode::corrupt, [&] { decode_restore_digest(damaged); });
}

/// What refusal() says on each of three ranks.
std::vector<std::string> refusals(const std::function<RestoreList(int)>& list,
                                  const std::function<std::string(int)>& problem) {
  std::vector<std::string> said(3);
  const auto errors = run_ranks(3, {}, [&](std::shared_ptr<SocketTransport> transport) {
    const int rank = transport->rank();
    const ProcessGroup group(std::move(transport));
    said[static_cast<std::size_t>(rank)] = refusal(group, list(rank), problem(rank));
  });
  EXPECT_THAT(errors, Each(""));
  return said;
}

TEST(SameRequests, AreRefusedAlikeOnAllRanks) {
  const auto same = [](int) { return restore_list("id", 2, std::vector{request("a", "x,-")}); };
  const auto none = [](int) { return std::string(); };
  EXPECT_THAT(refusals(same, none), Each(""));
  // The lowest rank's problem, before any difference.
  EXPECT_THAT(refusals([&](int rank) { return rank == 2 ? restore_list("id", 3, {}) : same(rank); },
                       [](int rank) { return rank == 0 ? "" : "problem " + std::to_string(rank); }),
              Each("problem 1"));
  const std::string begin = "restore by processes that read for each other: ";
  EXPECT_THAT(refusals(
                  [](int rank) {
                    return restore_list("id", rank == 2 ? 3 : 2, std::vector{request("a", "x,-")});
                  },
                  none),
              Each(begin + "found processes_per_read 2 on rank 0 and 3 on rank 2, needed is the "
                           "same on all"));
  EXPECT_THAT(refusals(
                  [](int rank) {
                    return restore_list(rank == 1 ? "other" : "id", 2,
                                        std::vector{request("a", "x,-")});
                  },
                  none),
              Each(begin + "found checkpoint id on rank 0 and other on rank 1, needed is the same "
                           "on all"));
  EXPECT_THAT(
      refusals(
          [](int rank) {
            return restore_list("id", 2, std::vector{request("a", rank == 1 ? "-,x" : "x,-")});
          },
          none),
      Each(begin + "found 1 requests on rank 0 and 1 on rank 1, needed are the same on all; "
                   "rank 0 alone asks for \"a\" f32 [8, 4], x,- on x=4; rank 1 alone asks "
                   "for \"a\" f32 [8, 4], -,x on x=4"));
}

}  // namespace
}  // namespace shardwise::detail
