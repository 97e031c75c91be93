#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "shardwise/checkpoint/detail/read/stored_checkpoint.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"
#include "testing/random_shardings.h"
#include "testing/temp_dir.h"

namespace shardwise::detail {
namespace {

using testing::IsEmpty;

// Any sharding, any number of writers: each element is stored once, by a writer that holds it, and
// comes back.
TEST(Writers, OfACheckpointStoreEachElementOnce) {
  RandomShardings random(11);
  std::set<std::size_t> numbers_of_files;
  for (int round = 0; round < 60; ++round) {
    const TempDir dir;
    const Mesh mesh = random.mesh();
    std::vector<HostTensor> tensors;
    for (int t = 0; t < 3; ++t) {
      const Shape shape{random.draw(1, 300), random.draw(1, 300)};
      const std::string spec = random.spec_with_parts(mesh, 2).to_string();
      tensors.push_back(host_tensor("t" + std::to_string(t), DType::f32, shape,
                                    mesh.to_string().c_str(), spec.c_str()));
    }
    const std::int64_t writers = random.draw(1, 6);
    SCOPED_TRACE(testing::Message() << mesh.to_string() << ", " << writers << " writers");
    CheckpointManager manager(dir.path());
    const SaveStats stats = manager.save(1, sources_of(tensors), {.writers = writers});
    const StoredCheckpoint stored = open_checkpoint(*posix_file_system(), stats.directory);
    numbers_of_files.insert(stored.manifest.files.size());
    EXPECT_LE(stored.manifest.files.size(), static_cast<std::size_t>(writers));
    EXPECT_THAT(verify_checkpoint(stats.directory).damage, IsEmpty());

    const CheckpointReader reader(stats.directory);
    std::size_t bytes = 0;
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      for (const PieceEntry& piece : stored.manifest.tensors[t].pieces) {
        bytes += num_bytes(piece.box.shape(), 4);
      }
      std::vector<std::byte> found(tensors[t].data->size());
      reader.read(tensors[t].name, Box::whole(tensors[t].spec.shape), found);
      EXPECT_EQ(found, *tensors[t].data);
    }
    EXPECT_EQ(bytes, stats.logical_bytes);
  }
  EXPECT_GT(numbers_of_files.size(), 3u);
}

TEST(Writers, MakeOneFileEachAndCountProgressTogether) {
  const TempDir dir;
  CheckpointManager manager(dir.path());
  const HostTensor replicated = host_tensor("r", DType::f32, {1024, 1024}, "4", "-,-");
  std::size_t last = 0;
  SaveOptions options{.writers = 4};
  options.progress = [&](const Progress& progress) {
    EXPECT_GT(progress.done_bytes, last);
    last = progress.done_bytes;
    EXPECT_EQ(progress.total_bytes, 4u << 20);
  };
  const SaveStats stats = manager.save(1, {replicated.source()}, options);
  EXPECT_EQ(last, 4u << 20);
  for (int f = 0; f < 4; ++f) {
    EXPECT_TRUE(std::filesystem::exists(stats.directory /
                                        ("shards-0000" + std::to_string(f) + "-of-00004.h5")));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(stats.directory), {}), 6);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { manager.save(2, {replicated.source()}, {.writers = 0}); }),
              testing::HasSubstr("writers is 0, needed 1 to 99999"));
}

}  // namespace
}  // namespace shardwise::detail
