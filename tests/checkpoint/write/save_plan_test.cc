#include "shardwise/checkpoint/detail/write/save_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>

#include "testing/errors.h"
#include "testing/host_tensor.h"

namespace shardwise::detail {
namespace {

TEST(SavePlan, SortsNamesAndNumbersChunks) {
  const Executor executor(2);
  const HostTensor tensors[] = {
      host_tensor("z", DType::f32, {1024, 1024}, "2,2", "0,-"),
      host_tensor("a", DType::i8, {10}, "2,2", "0"),
      host_tensor("m", DType::f32, {0}, "2,2", "0"),
  };
  const SavePlan plan = plan_save(sources_of(tensors), Codec::none, executor);
  ASSERT_EQ(plan.tensors.size(), 3u);
  EXPECT_EQ(plan.tensors[0].name, "a");
  ASSERT_EQ(plan.tensors[0].pieces.size(), 1u) << "small, so it is not cut";
  EXPECT_EQ(plan.tensors[0].pieces[0].box, Box({0}, {10}));
  EXPECT_EQ(plan.tensors[0].pieces[0].layout, Layout::contiguous);
  EXPECT_EQ(plan.tensors[1].pieces.size(), 0u);
  EXPECT_EQ(plan.tensors[2].pieces[1].dataset.path(), "/tensors/1/1");
  EXPECT_EQ(plan.tensors[2].pieces[1].layout, Layout::chunked);
  EXPECT_EQ(plan.tensors[2].pieces[1].first_chunk, 3);
  EXPECT_EQ(plan.tensors[2].sharding->mesh().to_string(), "2,2");
  EXPECT_EQ(plan.chunks, 5);
  EXPECT_EQ(plan.logical_bytes, (std::size_t{4} << 20) + 10);
}

TEST(SavePlan, FindsTheOneNameOfManyThatIsGivenTwice) {
  std::vector<HostTensor> tensors(3000, host_tensor("", DType::i8, {1}, "", "-"));
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].name = "t" + std::to_string(i);
  std::vector<TensorSource> sources = sources_of(tensors);
  check_sources(sources);
  for (const std::size_t i : {0, 1, 1500, 2998}) {
    sources.back().name = sources[i].name;
    EXPECT_EQ(message_of(ErrorCode::invalid_argument, [&] { check_sources(sources); }),
              "save: tensor name " + shardwise::quoted(sources[i].name) + " is given twice");
  }
}

TEST(SavePlan, RefusesAMeshThatNoManifestCanHold) {
  const auto message = [](const char* mesh, const char* spec) {
    const Sharding sharding(Mesh::parse(mesh), PartitionSpec::parse(spec));
    const std::vector<TensorSource> sources = {
        callback_tensor("w", {DType::f32, {8}, sharding}, [](const Box&, auto) {})};
    return message_of(ErrorCode::invalid_argument, [&] { check_sources(sources); });
  };
  const std::string begin = "save: tensor \"w\" has a mesh that cannot be saved: ";
  EXPECT_EQ(message("a=2@?", "a"), begin + "it has no devices");
  EXPECT_EQ(message("a=20000000", "-"),
            begin + "it has 20000000 devices, needed is at most 16777216");
  EXPECT_EQ(message("a\xff=2", "-"), begin + "its axis \"a\\xff\" is not UTF-8");
}

// Small tensors are stored whole, however they are cut; yet their own sharding is to fit them.
TEST(SavePlan, RefusesAShapeThatTheShardingDoesNotAllow) {
  const auto sources = [](std::int64_t rows) {
    const Sharding sharding(Mesh::parse("a=4"), PartitionSpec::parse("a,-"),
                            UnevenPolicy::strict());
    return std::vector<TensorSource>{
        callback_tensor("w/x", {DType::f32, {rows, 8}, sharding}, [](const Box&, auto) {})};
  };
  for (const std::int64_t rows : {6, 6'000'002}) {
    EXPECT_THAT(
        message_of(ErrorCode::invalid_argument, [&] { check_sources(sources(rows)); }),
        testing::AllOf(testing::StartsWith("save: tensor \"w/x\" cannot be cut by its sharding: "),
                       testing::HasSubstr("dim 0"), testing::HasSubstr("a multiple of 4")));
  }
  check_sources(sources(8));
  check_sources(sources(0));
}

// Shardings are equal if they place the same; the stored one is the caller's.
TEST(SavePlan, KeepsEachTensorsOwnMeshAndSpec) {
  const auto source = [](const char* name, const char* mesh, const char* spec) {
    const Sharding sharding(Mesh::parse(mesh), PartitionSpec::parse(spec));
    return callback_tensor(name, {DType::f32, {8, 8}, sharding}, [](const Box&, auto) {});
  };
  const SavePlan plan =
      plan_save({source("a", "data=8,model=1", "-,-"), source("b", "data=8,model=1", "-,model"),
                 source("c", "data=8,model=1", "-,model"), source("d", "x=8", "-,-"),
                 source("e", "a=2,b=4", "a+b,-"), source("f", "c=8", "c,-")},
                Codec::none, Executor(1));
  const auto text = [&](std::size_t t) {
    const Sharding& sharding = *plan.tensors[t].sharding;
    return sharding.mesh().to_string() + " " + sharding.spec().to_string();
  };
  EXPECT_EQ(text(0), "data=8,model=1 -,-");
  EXPECT_EQ(text(1), "data=8,model=1 -,model");
  EXPECT_EQ(text(2), "data=8,model=1 -,model");
  EXPECT_EQ(text(3), "x=8 -,-");
  EXPECT_EQ(text(4), "a=2,b=4 a+b,-");
  EXPECT_EQ(text(5), "c=8 c,-");
}

TEST(SavePlan, CutsNoTensorBelow64KiB) {
  const Executor executor(1);
  const HostTensor tensors[] = {
      host_tensor("a", DType::u8, {65535}, "2,2", "0"),
      host_tensor("b", DType::u8, {65536}, "2,2", "0"),
      host_tensor("c", DType::f64, {8191}, "2,2", "0+1"),
      host_tensor("d", DType::f64, {}, "2,2", ""),
  };
  const SavePlan plan = plan_save(sources_of(tensors), Codec::zstd, executor);
  EXPECT_EQ(plan.tensors[0].pieces.size(), 1u);
  ASSERT_EQ(plan.tensors[1].pieces.size(), 2u);
  EXPECT_EQ(plan.tensors[1].pieces[0].layout, Layout::contiguous) << "a piece of 32 KiB";
  EXPECT_EQ(plan.tensors[2].pieces.size(), 1u);
  EXPECT_EQ(plan.tensors[3].pieces.size(), 1u);
}

TEST(SavePlan, ChoosesTheCodecPerTensor) {
  const Executor executor(2);
  const HostTensor tensors[] = {
      host_tensor("a_ramp", DType::i64, {500, 500}, "", "-,-", Values::ramp),
      host_tensor("b_small", DType::i64, {50}, "", "-", Values::ramp),
      host_tensor("c_random", DType::u8, {500, 500}, "", "-,-"),
  };
  HostTensor random = tensors[2];
  auto bytes = std::make_shared<std::vector<std::byte>>(random.data->size());
  std::mt19937 generator(1);
  for (std::byte& byte : *bytes) byte = static_cast<std::byte>(generator());
  random.data = bytes;
  const HostTensor all[] = {tensors[0], tensors[1], random};

  const SavePlan automatic = plan_save(sources_of(all), Codec::automatic, executor);
  EXPECT_EQ(automatic.tensors[0].pieces[0].codec, StoredCodec::zstd);
  EXPECT_EQ(automatic.efforts[0], Effort::matches);
  EXPECT_EQ(automatic.tensors[1].pieces[0].codec, StoredCodec::none) << "too small";
  EXPECT_EQ(automatic.tensors[2].pieces[0].codec, StoredCodec::none) << "would not shrink";

  const SavePlan zstd = plan_save(sources_of(all), Codec::zstd, executor);
  EXPECT_EQ(zstd.tensors[2].pieces[0].codec, StoredCodec::zstd);
  const SavePlan none = plan_save(sources_of(all), Codec::none, executor);
  EXPECT_EQ(none.tensors[0].pieces[0].codec, StoredCodec::none);
}

// A source may wait for a disk or for another process, which a worker of oneTBB must not.
TEST(SavePlan, ReadsSamplesOnNoThreadOfTheExecutor) {
  const Executor executor(2);
  std::mutex mutex;
  std::set<std::thread::id> readers, workers;
  const auto note = [&](std::set<std::thread::id>& threads) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
  };
  std::vector<TensorSource> sources;
  for (int i = 0; i < 64; ++i) {
    sources.push_back(callback_tensor(
        "t" + std::to_string(i),
        {DType::f32, {256, 256}, Sharding(Mesh::line(1), PartitionSpec::parse("-,-"))},
        [&](const Box& /*box*/, std::span<std::byte> out) {
          note(readers);
          std::ranges::fill(out, std::byte{1});
        }));
  }
  const auto note_workers = [&] {
    executor.parallel_for(1000, [&](std::int64_t /*i*/) { note(workers); });
  };
  note_workers();
  plan_save(std::move(sources), Codec::automatic, executor);
  note_workers();
  EXPECT_FALSE(readers.empty());
  EXPECT_TRUE(workers.contains(std::this_thread::get_id()));
  for (const std::thread::id reader : readers) EXPECT_FALSE(workers.contains(reader));
}

}  // namespace
}  // namespace shardwise::detail
