#include "shardwise/mend/detail/chunk_mender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/mend/detail/chunk_finder.h"
#include "testing/flip.h"
#include "testing/step_and_copy.h"

namespace shardwise {
namespace {

class ChunkMenderTest : public StepAndCopy {};

TEST_F(ChunkMenderTest, PutsRightBytesIntoEachCopy) {
  const auto stored = detail::open_checkpoint(*files_, step_);
  const detail::ChunkId id{0, 0, 0};
  const mend_detail::ChunkBytes bytes = mend_detail::bytes_of({stored, id, {}});
  const auto good = mend_detail::ChunkFinder(*files_, {step_}).find_stored(bytes);
  ASSERT_TRUE(good);
  for (const auto& directory : {step_, copy_}) {
    flip(directory / bytes.file, bytes.address + 7, std::byte{1});
    EXPECT_FALSE(verify_checkpoint(directory).ok());
  }
  mend_detail::ChunkMender mender(*files_, stored, {step_, copy_});
  mender.put(id, good->bytes);
  mender.seal();
  for (const auto& directory : {step_, copy_}) EXPECT_TRUE(verify_checkpoint(directory).ok());

  std::filesystem::remove_all(step_);
  std::filesystem::remove_all(copy_);
  EXPECT_THROW(mender.put(id, good->bytes), Error);
}

}  // namespace
}  // namespace shardwise
