#include "shardwise/mend/detail/chunk_mender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/mend/detail/chunk_finder.h"
#include "testing/flip.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

/// A step of a root, and a copy of it.
class ChunkMenderTest : public testing::Test {
 protected:
  ChunkMenderTest() {
    const HostTensor tensor = host_tensor("x", DType::f32, {1000}, "1", "-", Values::noise);
    CheckpointManager(dir_ / "root").save(1, {tensor.source()}, {.codec = Codec::none});
    std::filesystem::copy(dir_ / "root", dir_ / "copy", std::filesystem::copy_options::recursive);
  }

  const TempDir dir_;
  const std::filesystem::path step_ = dir_ / "root/step-00000001";
  const std::filesystem::path copy_ = dir_ / "copy/step-00000001";
  const std::shared_ptr<FileSystem> files_ = posix_file_system();
};

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
