#include "shardwise/reshape/detail/reshard/reshard_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "shardwise/checkpoint/detail/read/cached_reader.h"
#include "shardwise/reshape/reshard.h"
#include "testing/errors.h"
#include "testing/host_tensor.h"
#include "testing/random_checkpoint.h"
#include "testing/temp_dir.h"

namespace shardwise::reshape_detail {
namespace {

namespace fs = std::filesystem;

/// A save of all tensors of a reader, cut over a mesh.
detail::SavePlan plan_of(const std::shared_ptr<const BoxReader>& reader, const Mesh& mesh,
                         RandomShardings& random, Codec codec) {
  std::vector<TensorSource> sources;
  for (std::size_t t = 0; t < reader->tensors().size(); ++t) {
    const TensorInfo& info = reader->tensors()[t];
    sources.push_back({.name = info.name,
                       .reader = reader,
                       .tensor = t,
                       .sharding = Sharding(mesh, random.spec(mesh, info.shape.size()))});
  }
  const Executor executor(1);
  return detail::plan_save(std::move(sources), codec, executor);
}

// The predicted reads are those that a reader then counts, whatever fits in its cache.
TEST(ReshardCosts, AreThoseOfARun) {
  RandomCheckpoints random(5);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    std::vector<HandMadeTensor> tensors;
    for (std::int64_t t = random.draw(1, 3); t > 0; --t) {
      tensors.push_back(random.tensor("t" + std::to_string(t)));
    }
    const TempDir dir;
    const fs::path path = HandMadeCheckpoint(tensors, 2).write(dir / "a");
    const auto open = [&] { return detail::open_checkpoint(*posix_file_system(), path); };
    const std::vector<TensorInfo> infos = detail::tensor_infos(open());
    const auto cache_bytes = static_cast<std::size_t>(random.draw(0, 3) * random.draw(0, 400));
    detail::ChunkReader looked(open(), {.threads = 1}), read(open(), {.threads = 1});
    const auto cached = std::make_shared<const detail::CachedReader>(read, infos, cache_bytes);
    const detail::SavePlan plan = plan_of(cached, random.mesh(), random, Codec::none);
    const std::vector<detail::ChunkLayout> files =
        detail::ChunkLayout::of_files(plan.tensors, std::ssize(plan.files));

    const ReadCosts costs = costs_of_reading(
        looked, plan, files,
        [](const TensorSource& tensor, const Box& box) {
          return std::vector<EditedTensors::SourceBox>{{tensor.tensor, box}};
        },
        cache_bytes);
    EXPECT_EQ(looked.stats().chunks, 0) << "nothing is read";
    for (const detail::ChunkLayout& file : files) {
      for (std::int64_t c = 0; c < file.num_chunks(); ++c) {
        const detail::FileChunk chunk = file.chunk(c);
        std::vector<std::byte> out(chunk.held_bytes());
        cached->read(plan.sources[chunk.tensor].tensor, chunk.box, out);
      }
    }
    EXPECT_EQ(costs.decodes, read.stats().chunks);
    EXPECT_EQ(costs.stored_bytes, read.stats().stored_bytes);
    EXPECT_EQ(costs.decoded_bytes, read.stats().decoded_bytes);
    EXPECT_EQ(costs.needed_bytes, plan.logical_bytes);
    EXPECT_LE(costs.chunks, costs.decodes);
  }
}

TEST(PlanReshard, FindsTheErrorsOfARunAndWritesNothing) {
  const TempDir dir;
  const HostTensor tensor = host_tensor("t", DType::f32, {600, 1000}, "a=2", "a,-");
  CheckpointManager manager(dir / "source");
  const fs::path source = manager.save(4, sources_of(std::vector{tensor})).directory;
  const auto plan = [&](const fs::path& target, ReshardOptions options = {}) {
    options.threads = 1;
    return plan_reshard(source, target, Mesh::parse("b=3"), SpecRules::parse("*=-,b"), options);
  };
  const ReshardPlan found = plan(dir / "target");
  EXPECT_EQ(found.step, 4);
  EXPECT_EQ(found.logical_bytes, 2'400'000u);
  EXPECT_EQ(found.needed_bytes, 2'400'000u);
  EXPECT_EQ(found.files, 1);
  EXPECT_FALSE(fs::exists(dir / "target"));
  EXPECT_EQ(plan(dir / "target", {.edits = {.casts = {{"*", DType::bf16}}}}).logical_bytes,
            1'200'000u);
  const ReshardPlan turned = plan(
      dir / "target",
      {.edits = {.transposes = {{"*", {1, 0}}}, .splits = {{"t", {"u", "v"}, 0, {900, 100}}}}});
  EXPECT_EQ(turned.logical_bytes, 2'400'000u);
  EXPECT_EQ(turned.needed_bytes, 2'400'000u);
  EXPECT_EQ(turned.tensors, 2u);

  EXPECT_THAT(message_of(ErrorCode::already_exists, [&] { plan(dir / "source"); }),
              testing::HasSubstr("step-00000004 is already there"));
  ReshardOptions replacing;
  replacing.save.existing = Existing::replace;
  EXPECT_EQ(plan(dir / "source", replacing).files, 1);
  EXPECT_THAT(message_of(ErrorCode::invalid_argument, [&] { plan(source / "x"); }),
              testing::HasSubstr("needed is a directory outside"));
  EXPECT_THAT(message_of(ErrorCode::invalid_argument,
                         [&] { plan(dir / "target", {.edits = {.select = {"x"}}}); }),
              testing::HasSubstr("select \"x\" matches none of 1 tensors"));
  ReshardOptions poor;
  poor.save.memory_budget_bytes = 1 << 20;
  message_of(ErrorCode::invalid_argument, [&] { plan(dir / "target", poor); });
}

}  // namespace
}  // namespace shardwise::reshape_detail
