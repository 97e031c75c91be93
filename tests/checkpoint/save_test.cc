#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <random>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/detail/save/group_save.h"
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
    const jobs_detail::SaveContext context{*files_, root, executor_, pool_,   leftovers_,
                                           spare_,  0,    {},        huffman_};
    return jobs_detail::run_save(context, ProcessGroup(), step, std::move(sources), options);
  }

  TempDir dir_;
  std::shared_ptr<FileSystem> files_ = posix_file_system();
  Executor executor_{2};
  std::unique_ptr<StagingPool> pool_;
  std::vector<std::filesystem::path> leftovers_;
  Spare spare_{*files_};
  Effort huffman_ = Effort::huffman_only;
};

TEST(Codec, NamesGoBothWays) {
  for (const Codec codec : {Codec::automatic, Codec::zstd, Codec::none}) {
    EXPECT_EQ(parse_codec(name(codec)), codec);
  }
  EXPECT_EQ(name(Codec::automatic), "auto");
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { parse_codec("gzip"); }),
              testing::HasSubstr("codec \"gzip\": it is not known; needed is auto, zstd or none"));
}

TEST(Existing, NamesGoBothWays) {
  for (const Existing existing : {Existing::fail, Existing::replace, Existing::skip}) {
    EXPECT_EQ(parse_existing(name(existing)), existing);
  }
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [] { parse_existing("keep"); }),
              testing::HasSubstr(R"(found existing "keep", needed "fail", "replace" or "skip")"));
}

TEST_F(SaveTest, ManifestSaysWhatIsThere) {
  const HostTensor tensors[] = {
      host_tensor("a/w", DType::f32, {300, 200}, "data=4,model=2", "data,model"),
      host_tensor("a", DType::bf16, {200}, "data=4,model=2", "-")};
  const SaveStats stats = save(12, sources_of(tensors), {.user_json = " [1] "});
  const std::string text = file_text(stats.directory / kManifestName);
  const Manifest manifest = parse_manifest(text, "manifest.json");
  EXPECT_EQ(manifest.step, 12);
  EXPECT_EQ(manifest.tensors[1].sharding->mesh().to_string(), "data=4,model=2");
  EXPECT_EQ(manifest.tensors[1].sharding->spec().to_string(), "data,model");
  const StoredCheckpoint stored = open_checkpoint(*files_, stats.directory);
  EXPECT_EQ(stored.manifest.tensors[0].pieces.size(), 1u) << "replicas are stored once";
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

/// The hashes of all chunks' elements, file by file.
std::vector<std::vector<std::uint64_t>> decoded_hashes(const std::filesystem::path& directory) {
  std::vector<std::vector<std::uint64_t>> hashes;
  for (ChunkTable& table : open_checkpoint(*posix_file_system(), directory).tables) {
    hashes.push_back(std::move(table.decoded_hashes));
  }
  return hashes;
}

// Normal floats, which our own coder codes, values for zstd, values that do not shrink, and values
// that are not filtered at all.
std::vector<HostTensor> tensors_of_every_kind() {
  std::vector<HostTensor> tensors;
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::u8}) {
    const std::string type(name(dtype));
    tensors.push_back(host_tensor(type + "/ramp", dtype, {300, 701}, "a=3", "a,-", Values::ramp));
    tensors.push_back(host_tensor(type + "/noise", dtype, {300, 701}, "a=3", "-,a"));
    tensors.push_back(host_tensor(type + "/small", dtype, {7, 5}, "a=3", "a,-"));
    HostTensor normal = tensors.end()[-2];
    normal.name = type + "/normal";
    std::vector<float> values(num_bytes(normal.spec.shape, 1));
    std::mt19937 random(7);
    std::normal_distribution<float> distribution;
    for (float& value : values) value = distribution(random);
    auto data = std::make_shared<std::vector<std::byte>>(values.size() * size_bytes(dtype));
    convert(DType::f32, reinterpret_cast<const std::byte*>(values.data()), dtype, data->data(),
            values.size());
    normal.data = data;
    tensors.push_back(normal);
  }
  return tensors;
}

// Whatever our own coder makes is what plain zstd makes, as far as any reader can tell.
TEST_F(SaveTest, OurOwnCoderAndZstdAloneAreReadAlike) {
  const std::vector<HostTensor> tensors = tensors_of_every_kind();
  const SaveStats ours = save(1, sources_of(tensors));
  huffman_ = Effort::zstd_huffman;
  const SaveStats alone = save(2, sources_of(tensors));
  EXPECT_NE(ours.stored_bytes, alone.stored_bytes) << "both were at work";
  EXPECT_EQ(decoded_hashes(ours.directory), decoded_hashes(alone.directory));
  for (const SaveStats& stats : {ours, alone}) {
    SCOPED_TRACE(stats.directory);
    EXPECT_TRUE(verify_checkpoint(stats.directory).ok());
    const CheckpointReader reader(stats.directory);
    for (const HostTensor& tensor : tensors) {
      std::vector<std::byte> out(tensor.data->size());
      reader.read(tensor.name, Box::whole(tensor.spec.shape), out);
      EXPECT_TRUE(out == *tensor.data) << tensor.name;
    }
  }
}

TEST_F(SaveTest, EqualContentHasEqualHashesWhateverTheCodec) {
  const std::vector<HostTensor> tensors = tensors_of_every_kind();
  const auto hashes = decoded_hashes(save(1, sources_of(tensors), {.writers = 2}).directory);
  ASSERT_EQ(hashes.size(), 2u);
  std::int64_t step = 1;
  for (const Codec codec : {Codec::none, Codec::automatic}) {
    const SaveStats stats = save(++step, sources_of(tensors), {.codec = codec, .writers = 2});
    EXPECT_EQ(decoded_hashes(stats.directory), hashes) << name(codec);
  }
  std::vector<HostTensor> changed = tensors;
  auto data = std::make_shared<std::vector<std::byte>>(*changed.front().data);
  data->front() ^= std::byte{1};
  changed.front().data = data;
  EXPECT_NE(decoded_hashes(save(++step, sources_of(changed), {.writers = 2}).directory), hashes);
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

// Neither a save nor a reader has all files open at once.
TEST_F(SaveTest, MakesMoreFilesThanTheProcessMayOpen) {
  const HostTensor tensor = host_tensor("x", DType::u8, {200, 65536}, "a=200", "a,-");
  rlimit usual{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
  const rlimit few{.rlim_cur = 128, .rlim_max = usual.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const SaveStats stats = save(1, {tensor.source()}, {.writers = 200});
  EXPECT_TRUE(holds(CheckpointReader(stats.directory), {&tensor, 1}));
  EXPECT_TRUE(verify_checkpoint(stats.directory).ok());
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
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
