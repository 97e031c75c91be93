// Every rank runs these, under mpirun.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "mpi_world.h"
#include "shardwise/runtime/process/detail/message.h"
#include "testing/errors.h"
#include "testing/group_operations.h"

namespace shardwise {
namespace {

using std::chrono::milliseconds;
using testing::AllOf;
using testing::HasSubstr;

TEST(Mpi, GivesEveryRankWhatItIsToGet) {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) run_operations(mpi_world(), seed, 30);
}

TEST(Mpi, DuplicatesDoNotMixWhateverThreadsDo) {
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 3; ++t) {
    threads.emplace_back([t, own = mpi_world().duplicate()] { run_operations(own, 100 + t, 40); });
  }
  run_operations(mpi_world(), 99, 40);
  for (std::thread& thread : threads) thread.join();
}

TEST(Mpi, CarriesLongMessages) {
  const int size = mpi_world().size(), own = mpi_world().rank();
  std::vector<ProcessGroup::Outgoing> outgoing;
  std::vector<int> from;
  for (int rank = 0; rank < size; ++rank) {
    if (rank == own) continue;
    outgoing.push_back(
        {rank, Bytes(std::size_t{20} << 20, static_cast<std::byte>(own * 16 + rank))});
    from.push_back(rank);
  }
  const auto parts = mpi_world().exchange(std::move(outgoing), from);
  for (std::size_t p = 0; p < from.size(); ++p) {
    EXPECT_EQ(parts[p], Bytes(std::size_t{20} << 20, static_cast<std::byte>(from[p] * 16 + own)));
  }
}

TEST(Mpi, AnAbortReachesAll) {
  const ProcessGroup group = mpi_world().duplicate(), next = mpi_world().duplicate();
  if (group.rank() == group.size() - 1) group.abort("disk full");
  EXPECT_THAT(message_of(ErrorCode::cancelled, [&] { group.barrier(); }),
              HasSubstr("rank " + std::to_string(group.size() - 1) + ": disk full"));
  next.barrier();
}

TEST(Mpi, WhoDoesNotComeInTimeIsNamed) {
  const int last = mpi_world().size() - 1;
  for (milliseconds deadline(100);; deadline *= 8) {
    const ProcessGroup group = mpi_world().duplicate(deadline);
    const std::string wanted = "rank " + std::to_string(last) + " of " + std::to_string(last + 1) +
                               " did not come within " + detail::seconds_text(deadline);
    std::string found = wanted;
    if (group.rank() < last) {
      found = message_of(ErrorCode::cancelled, [&] { group.barrier(); });
    }
    // On a busy machine another one may not come, either: then they take more time.
    const bool is_right = found.find(wanted) != std::string::npos;
    const auto all = mpi_world().all_gather(Bytes(1, std::byte{is_right}));
    if (std::ranges::all_of(all, [](const Bytes& one) { return one[0] == std::byte{1}; })) break;
    ASSERT_LT(deadline, std::chrono::seconds(20)) << found;
  }
}

TEST(MpiNightly, CarriesMessagesThatMpiCannotCount) {
  constexpr std::size_t kBytes = (std::size_t{5} << 29) + 7;
  const int size = mpi_world().size(), own = mpi_world().rank();
  if (size == 1) return;
  if (own == 0) {
    Bytes bytes(kBytes);
    bytes.front() = bytes.back() = std::byte{7};
    mpi_world().exchange({{size - 1, std::move(bytes)}}, {});
  } else if (own == size - 1) {
    const auto parts = mpi_world().exchange({}, std::vector<int>{0});
    EXPECT_EQ(parts[0].size(), kBytes);
    EXPECT_EQ(parts[0].front(), std::byte{7});
    EXPECT_EQ(parts[0].back(), std::byte{7});
  } else {
    mpi_world().exchange({}, {});
  }
}

}  // namespace
}  // namespace shardwise
