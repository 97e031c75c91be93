#include "shardwise/mend/detail/chunk_finder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/jobs/manager.h"
#include "testing/flip.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

/// A step of a root, and a copy of it.
class ChunkFinderTest : public testing::Test {
 protected:
  ChunkFinderTest() {
    const HostTensor tensor = host_tensor("x", DType::f32, {1000}, "1", "-", Values::noise);
    CheckpointManager(dir_ / "root").save(1, {tensor.source()}, {.codec = Codec::none});
    std::filesystem::copy(dir_ / "root", dir_ / "copy", std::filesystem::copy_options::recursive);
  }

  const TempDir dir_;
  const std::filesystem::path step_ = dir_ / "root/step-00000001";
  const std::filesystem::path copy_ = dir_ / "copy/step-00000001";
  const std::shared_ptr<FileSystem> files_ = posix_file_system();
};

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
