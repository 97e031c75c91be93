// Every rank runs these, under mpirun.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "mpi_world.h"
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
  const ProcessGroup group = mpi_world().duplicate(milliseconds(100));
  if (group.size() > 1 && group.rank() < group.size() - 1) {
    EXPECT_THAT(message_of(ErrorCode::cancelled, [&] { group.barrier(); }),
                HasSubstr("rank " + std::to_string(group.size() - 1) + " of " +
                          std::to_string(group.size()) + " did not come within 0.1 s"));
  }
  mpi_world().barrier();
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
