#include "shardwise/mend/detail/chunk_finder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "testing/flip.h"
#include "testing/step_and_copy.h"

namespace shardwise {
namespace {

class ChunkFinderTest : public StepAndCopy {};

TEST_F(ChunkFinderTest, GivesBytesThatHaveTheHash) {
  const auto stored = detail::open_checkpoint(*files_, step_);
  const mend_detail::WantedChunk wanted{stored, {0, 0, 0}, {}};
  const mend_detail::ChunkBytes bytes = mend_detail::bytes_of(wanted);
  EXPECT_EQ(bytes.bytes, 4000u);
  mend_detail::ChunkFinder finder(*files_, {dir_ / "nowhere", copy_});
  const auto found = finder.find_stored(bytes);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->from, copy_);
  EXPECT_TRUE(mend_detail::are_stored_bytes(wanted, found->bytes));

  auto other = bytes;
  ++other.hash;
  EXPECT_FALSE(finder.find_stored(other));
  flip(copy_ / bytes.file, bytes.address, std::byte{1});
  std::string why_not;
  EXPECT_FALSE(mend_detail::ChunkFinder(*files_, {copy_}).find(wanted, why_not));
  EXPECT_FALSE(why_not.empty());
}

TEST_F(ChunkFinderTest, FindsTensorsAndChunksByName) {
  const auto stored = detail::open_checkpoint(*files_, step_);
  EXPECT_EQ(mend_detail::find_tensor(stored.manifest, "x"), 0u);
  EXPECT_FALSE(mend_detail::find_tensor(stored.manifest, "y"));
  EXPECT_TRUE(mend_detail::find_chunk(stored, 0, Box({0}, {1000})));
  EXPECT_FALSE(mend_detail::find_chunk(stored, 0, Box({0}, {999})));
}

}  // namespace
}  // namespace shardwise
