#include "shardwise/checkpoint/detail/write/save.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/errors.h"
#include "testing/hand_made_checkpoint.h"
#include "testing/host_tensor.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

class SaveTest : public testing::Test {
 protected:
  SaveStats save(std::int64_t step, std::vector<TensorSource> sources,
                 const SaveOptions& options = {}) {
    const std::filesystem::path& root = dir_.path();
    const SaveContext context{*files_, root, executor_, pool_, leftovers_, spare_};
    return run_save(context, step, std::move(sources), options);
  }

  TempDir dir_;
  std::shared_ptr<FileSystem> files_ = posix_file_system();
  Executor executor_{2};
  std::unique_ptr<StagingPool> pool_;
  std::vector<std::filesystem::path> leftovers_;
  Spare spare_{*files_};
};

TEST_F(SaveTest, ManifestSaysWhatIsThere) {
  const HostTensor tensors[] = {
      host_tensor("a/w", DType::f32, {300, 200}, "data=4,model=2", "data,model"),
      host_tensor("a", DType::bf16, {200}, "data=4,model=2", "-")};
  const SaveStats stats = save(12, sources_of(tensors), {.user_json = " [1] "});
  const std::string text = file_text(stats.directory / kManifestName);
  const Manifest manifest = parse_manifest(text, "manifest.json");
  EXPECT_EQ(manifest.step, 12);
  EXPECT_EQ(manifest.tensors[1].index, "/a%2Fw");
  EXPECT_EQ(manifest.tensors[1].mesh, "data=4,model=2");
  EXPECT_EQ(manifest.tensors[1].spec, "data,model");
  EXPECT_EQ(manifest.tensors[0].pieces.size(), 1u) << "replicas are stored once";
  ASSERT_EQ(manifest.files.size(), 1u);
  std::size_t bytes = text.size();
  for (const char* name : {"shards-00000-of-00001.h5", kIndexName}) {
    bytes += file_bytes(stats.directory / name).size();
  }
  EXPECT_EQ(stats.file_bytes, bytes);
  const std::vector<std::byte> index = file_bytes(stats.directory / kIndexName);
  EXPECT_EQ(manifest.index_bytes, index.size());
  EXPECT_EQ(manifest.index_hash, hash128(index.data(), index.size()));
}

TEST_F(SaveTest, KeepsItsBuffersForTheNextSave) {
  const HostTensor tensor = host_tensor("x", DType::f32, {300, 200}, "", "-,-");
  save(1, {tensor.source()});
  const StagingPool* const pool = pool_.get();
  save(2, {tensor.source()});
  EXPECT_EQ(pool_.get(), pool);
  save(3, {tensor.source()}, {.memory_budget_bytes = kLeastBudgetBytes});
  EXPECT_LE(pool_->sizes().buffers * pool_->sizes().buffer_bytes, kLeastBudgetBytes);
}

TEST_F(SaveTest, ErrorsSayWhichStepOnce) {
  const HostTensor tensor = host_tensor("x", DType::f32, {300, 200}, "", "-,-");
  save(1, {tensor.source()});
  const std::string message =
      message_of(ErrorCode::already_exists, [&] { save(1, {tensor.source()}); });
  EXPECT_THAT(message, testing::StartsWith("save step 1: publish"));
  EXPECT_EQ(message.find("save", 5), std::string::npos);
  EXPECT_THAT(files_->list(dir_.path()), testing::ElementsAre("step-00000001"));
}

}  // namespace
}  // namespace shardwise::detail
