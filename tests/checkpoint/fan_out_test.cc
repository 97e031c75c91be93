#include "shardwise/checkpoint/detail/together/fan_out.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/errors.h"
#include "testing/group_checkpoint.h"

namespace shardwise::detail {
namespace {

using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(BoxReaders, AreOneOfEachBlockOfNeighboursAndReadAboutAsMuch) {
  const std::vector<int> all{0, 1, 2, 3}, odd{1, 3};
  BoxReaders readers(4, 2);
  EXPECT_THAT(readers.choose(all, 100), ElementsAre(0, 2));
  EXPECT_THAT(readers.choose(all, 10), ElementsAre(1, 3));
  EXPECT_THAT(readers.choose(all, 10), ElementsAre(1, 3));
  EXPECT_THAT(readers.choose(odd, 1000), ElementsAre(1, 3));
  EXPECT_THAT(readers.choose(all, 1), ElementsAre(0, 2));
  EXPECT_THAT(readers.bytes(), ElementsAre(101u, 1020u, 101u, 1020u));

  BoxReaders of_all(4, 4);
  EXPECT_THAT(of_all.choose(all, 8), ElementsAre(0));
  EXPECT_THAT(of_all.choose(odd, 8), ElementsAre(1));
  EXPECT_THAT(of_all.choose(all, 8), ElementsAre(2));
}

TEST(BoxParts, OfAnotherBoxOrCutOffAreRefused) {
  const std::vector<std::byte> bytes(30, std::byte{5});
  const std::vector<const std::byte*> from{bytes.data(), bytes.data() + 10};
  const std::vector<BoxPart> parts{{7, 0, 10}, {8, 64, 20}};
  const Bytes message = pack_parts(parts, from);
  const std::vector<const std::byte*> begins = unpack_parts(message, parts);
  ASSERT_EQ(begins.size(), 2u);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.begin() + 10, begins[0]));
  EXPECT_TRUE(std::equal(bytes.begin() + 10, bytes.end(), begins[1]));

  const auto refused = [&](const Bytes& found, const std::vector<BoxPart>& wanted) {
    return message_of(ErrorCode::corrupt, [&] { unpack_parts(found, wanted); });
  };
  EXPECT_THAT(refused(message, {{7, 0, 10}, {9, 64, 20}}), HasSubstr("a part of another box"));
  EXPECT_THAT(refused(message, {{7, 0, 10}, {8, 0, 20}}), HasSubstr("a part of another box"));
  EXPECT_THAT(refused(message, {{7, 0, 10}}), HasSubstr("bytes more than needed"));
  EXPECT_THAT(refused(message, {{7, 0, 10}, {8, 64, 20}, {9, 0, 1}}),
              HasSubstr("found 0 bytes, needed a part of 1"));
  for (std::size_t i = 0; i < message.size(); ++i) {
    Bytes damaged = message;
    damaged[i] ^= std::byte{1};
    EXPECT_THAT(refused(damaged, parts), HasSubstr("bytes"));
  }
}

// A box of several messages, one of a byte, and one that rank 1 does not hold.
TEST(FanOut, GivesEachHolderTheReadersBytes) {
  const auto byte_of = [](std::size_t box, std::size_t i) {
    return static_cast<std::byte>(box * 91 + i % 251);
  };
  const std::size_t sizes[] = {(std::size_t{9} << 20) + 5, 1, 1000};
  const int readers[] = {2, 0, 0};
  const std::vector<int> holders[] = {{0, 1, 2}, {0, 1, 2}, {0, 2}};
  const auto errors = run_ranks(3, {}, [&](std::shared_ptr<SocketTransport> transport) {
    const int rank = transport->rank();
    const ProcessGroup group(std::move(transport));
    std::vector<std::vector<std::byte>> memory(6);  // two places of each box
    std::vector<std::vector<std::byte*>> places(3);
    std::vector<SharedBox> boxes;
    for (std::size_t b = 0; b < 3; ++b) {
      if (std::ranges::find(holders[b], rank) != holders[b].end()) {
        for (std::size_t copy = 0; copy < 2; ++copy) {
          std::vector<std::byte>& place = memory[2 * b + copy];
          place.resize(sizes[b]);
          for (std::size_t i = 0; i < sizes[b] && rank == readers[b]; ++i) place[i] = byte_of(b, i);
          places[b].push_back(place.data());
        }
      }
      boxes.push_back({b, sizes[b], readers[b], holders[b], places[b]});
    }
    fan_out(group, boxes);
    for (std::size_t b = 0; b < 3; ++b) {
      for (std::byte* const place : places[b]) {
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < sizes[b]; ++i) wrong += place[i] != byte_of(b, i) ? 1 : 0;
        EXPECT_EQ(wrong, 0u) << "rank " << rank << ", box " << b;
      }
    }
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace shardwise::detail
