#include "shardwise/checkpoint/detail/together/one_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "shardwise/checkpoint/detail/together/group_save.h"
#include "testing/group_checkpoint.h"

namespace shardwise::detail {
namespace {

using testing::Each;
using testing::HasSubstr;

const HostTensor& rows() {
  static const HostTensor tensor = host_tensor("w", DType::i32, {8, 3}, "x=4", "x,-");
  return tensor;
}

/// What rank `rank` of 4 holds of the rows: no one may ask it for others.
TensorSource rows_of(int rank) {
  const Box held({2 * rank, 0}, {2 * rank + 2, 3});
  return callback_tensor("w", rows().spec, [held](const Box& box, std::span<std::byte> out) {
    EXPECT_TRUE(held.contains(box)) << to_string(box);
    rows().source().reader->read(0, box, out);
  });
}

/// Ranks 0 and 1 together, and 2 and 3; what is thrown ends both.
std::vector<std::string> run_pairs(
    const std::function<void(Neighbours& neighbours, int rank)>& run) {
  return run_ranks(4, {}, [&](std::shared_ptr<SocketTransport> transport) {
    const int rank = transport->rank();
    const ProcessGroup group(std::move(transport));
    Neighbours neighbours(group, {.processes_per_file = 2});
    EXPECT_EQ(neighbours.is_writer(), rank % 2 == 0);
    try {
      run(neighbours, rank);
    } catch (...) {
      abort_group(group, "");
      throw;
    }
  });
}

TEST(Neighbours, GiveTheWriterWhatTheyHold) {
  const auto errors = run_pairs([](Neighbours& neighbours, int rank) {
    if (!neighbours.is_writer()) return neighbours.serve({rows_of(rank)});
    const std::vector<TensorSource> sources = neighbours.gather({rows_of(rank)}, 4);
    const Box boxes[] = {Box({2 * rank, 0}, {2 * rank + 2, 3}),      // its own
                         Box({2 * rank + 2, 1}, {2 * rank + 4, 3}),  // the neighbour's
                         Box({2 * rank, 0}, {2 * rank + 4, 3})};     // of both
    for (const Box& box : boxes) {
      std::vector<std::byte> found(num_bytes(box.shape(), 4)), needed(found.size());
      sources[0].reader->read(sources[0].tensor, box, found);
      rows().source().reader->read(0, box, needed);
      EXPECT_EQ(found, needed) << to_string(box);
    }
    neighbours.finish();
  });
  EXPECT_THAT(errors, Each(""));
}

TEST(Neighbours, SayWhichTensorTheyWereNotGiven) {
  const auto read_neighbours_rows = [](Neighbours& neighbours, int rank) {
    const std::vector<TensorSource> sources = neighbours.gather({rows_of(rank)}, 4);
    std::vector<std::byte> out(24);
    sources[0].reader->read(0, Box({2 * rank + 2, 0}, {2 * rank + 4, 3}), out);
    neighbours.finish();
  };
  auto errors = run_pairs([&](Neighbours& neighbours, int rank) {
    if (neighbours.is_writer()) return read_neighbours_rows(neighbours, rank);
    neighbours.serve(rank == 1 ? std::vector<TensorSource>() : std::vector{rows_of(rank)});
  });
  EXPECT_THAT(errors[1], HasSubstr("rank 1 was not given tensor \"w\", which rank 0 saves for"));
  EXPECT_THAT(errors[0], HasSubstr("rank 1 was not given"));

  errors = run_pairs([&](Neighbours& neighbours, int rank) {
    if (neighbours.is_writer()) return read_neighbours_rows(neighbours, rank);
    const HostTensor shorter = host_tensor("w", DType::i32, {3, 3}, "x=4", "-,-");
    neighbours.serve({rank == 1 ? shorter.source() : rows_of(rank)});
  });
  EXPECT_THAT(errors[1], HasSubstr("tensor \"w\" has shape [3, 3] on rank 1; rank 0, which saves "
                                   "it for both, wants box"));
}

TEST(Neighbours, WritersAreThoseOfTheFirstRankOfEachBlock) {
  const SaveOptions options{.writers = 2, .processes_per_file = 3};
  const auto first_and_end = [&](int rank) {
    const WriterRange range = writers_of(rank, options);
    return std::pair(range.first, range.end);
  };
  EXPECT_EQ(first_and_end(0), std::pair(std::int64_t{0}, std::int64_t{2}));
  EXPECT_EQ(first_and_end(2), std::pair(std::int64_t{0}, std::int64_t{0}));
  EXPECT_EQ(first_and_end(3), std::pair(std::int64_t{2}, std::int64_t{4}));
}

}  // namespace
}  // namespace shardwise::detail
