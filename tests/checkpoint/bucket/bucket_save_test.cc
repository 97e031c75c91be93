// Saves straight into a bucket, by a manager and by groups, over a bucket in memory.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

#include "shardwise/bucket/bucket.h"
#include "shardwise/bucket/detail/bucket_files.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/jobs/save_together.h"
#include "shardwise/runtime/process/rendezvous.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"
#include "testing/errors.h"
#include "testing/memory_bucket.h"
#include "testing/socket_transport.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::SizeIs;

class BucketSave : public ::testing::Test {
 protected:
  BucketSave() {
    use_object_client("memory", bucket_, {.tries = 3, .wait = [](auto) {}});
  }
  ~BucketSave() override { use_object_client("memory", nullptr); }

  static std::vector<float> values(float first) {
    std::vector<float> all(10'000);
    std::iota(all.begin(), all.end(), first);
    return all;
  }

  static SaveStats save(CheckpointManager& manager, std::int64_t step, float first,
                        SaveOptions options = {}) {
    const std::vector<float> all = values(first);
    return manager.save(step, {host_source("w", all)}, std::move(options));
  }

  static std::vector<float> restored(const CheckpointManager& manager) {
    std::vector<float> all(10'000);
    EXPECT_TRUE(
        manager.restore_latest([&](const CheckpointReader& reader) { reader.read("w", all); }));
    return all;
  }

  static std::vector<std::int64_t> steps(const CheckpointManager& manager) {
    std::vector<std::int64_t> numbers;
    for (const Step& step : manager.steps()) numbers.push_back(step.step);
    return numbers;
  }

  /// Keys that no step leads to.
  std::vector<std::string> strange_keys() const {
    std::vector<std::string> keys;
    const auto objects = bucket_->objects();
    for (const auto& [key, text] : objects) {
      const std::string manifest = key.substr(0, key.rfind('/') + 1) + "manifest.json";
      const auto at = objects.find(manifest);
      const bool is_live = at != objects.end() && at->second.starts_with('{');
      const bool is_ours = key == "runs/.shardwise-root" || key.starts_with("runs/stats-");
      if (key != manifest && !is_live && !is_ours) keys.push_back(key);
    }
    return keys;
  }

  const fs::path root_ = "s3://memory/runs";
  const std::shared_ptr<MemoryBucket> bucket_ = std::make_shared<MemoryBucket>();
};

TEST_F(BucketSave, KeepsNothingOfRemovedStepsButTombstones) {
  CheckpointManager manager(root_, {.keep = {.last = 2}});
  for (const int step : {1, 2, 3}) {
    const SaveStats stats = save(manager, step, static_cast<float>(step));
    EXPECT_GT(stats.file_bytes, stats.stored_bytes);
  }
  EXPECT_TRUE(bucket_->objects().contains("runs/stats-step-00000003.json"));
  EXPECT_FALSE(bucket_->objects().contains("runs/stats-step-00000001.json"));
  EXPECT_THAT(strange_keys(), ElementsAre());
}

TEST_F(BucketSave, AStepsNameStandsForItsNewestGeneration) {
  CheckpointManager manager(root_);
  save(manager, 1, 1);
  save(manager, 1, 2, {.existing = Existing::replace});
  EXPECT_THAT(strange_keys(), ElementsAre());
  std::vector<float> all(10'000);
  CheckpointReader(root_ / "step-00000001").read("w", all);
  EXPECT_EQ(all, values(2));
  EXPECT_TRUE(verify_checkpoint(root_ / "step-00000001").ok());

  EXPECT_TRUE(manager.remove(1));
  EXPECT_THAT(
      message_of(ErrorCode::not_found, [&] { CheckpointReader reader(root_ / "step-00000001"); }),
      HasSubstr("it was removed"));
}

TEST_F(BucketSave, KeepsStepsByTheStoresClock) {
  CheckpointManager hourly(root_, {.keep = {.interval = std::chrono::seconds(3600)}});
  for (const int step : {5, 6, 7, 8}) {
    save(hourly, step, 1);
    if (step != 6) bucket_->now += 10'000;
  }
  EXPECT_THAT(steps(hourly), ElementsAre(5, 6, 8));
}

TEST_F(BucketSave, ASaveThatFailsLeavesATombstoneAlone) {
  CheckpointManager manager(root_);
  save(manager, 1, 1);
  const auto before = bucket_->objects();
  TensorSource source = callback_tensor(
      "w", {DType::f32, {10'000}},
      [](const Box&, std::span<std::byte>) { throw Error(ErrorCode::io, "the tensor is gone"); });
  message_of(ErrorCode::io, [&] { manager.save(2, {source}); });
  EXPECT_THAT(strange_keys(), ElementsAre());
  EXPECT_EQ(bucket_->objects().size(), before.size() + 1);
}

TEST_F(BucketSave, RefusesWhatABucketCannotHave) {
  EXPECT_THAT(message_of(ErrorCode::unsupported,
                         [&] { CheckpointManager(root_, {.write = {.parity_blocks = 2}}); }),
              AllOf(HasSubstr("s3://memory/runs"), HasSubstr("found 2 parity blocks")));
  const std::vector<float> all = values(1);
  const auto save_as = [&](const fs::path& target, const EncodeOptions& encode) {
    return save_together(GroupRendezvous({}, "save"), target, {host_source("w", all)}, {}, encode);
  };
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { save_as(root_ / "model.sw", {}); }),
              HasSubstr("found the name model.sw, needed step-N as its last part"));
  const fs::path step = root_ / "step-00000007";
  EXPECT_THAT(
      message_of(ErrorCode::unsupported, [&] { save_as(step, {.unchanged_since = "earlier"}); }),
      HasSubstr("chunks cannot be linked in a bucket"));
  EXPECT_EQ(save_as(step, {}).directory, root_ / "step-00000007.g2");
  EXPECT_EQ(restored(CheckpointManager(root_)), values(1));
}

TEST_F(BucketSave, AGroupSavesOneStep) {
  const auto save_twice = [&](std::shared_ptr<SocketTransport> transport) {
    const int rank = transport->rank();
    CheckpointManager manager(
        root_, {.keep = {.last = 1}, .group = ProcessGroup(transport, std::chrono::minutes(5))});
    const Sharding sharding(Mesh::parse("x=3"), PartitionSpec::parse("x"));
    for (const int step : {1, 2}) {
      std::vector<float> own(3'000, static_cast<float>(10 * step + rank));
      TensorSource source = shards_source(
          "w", {DType::f32, {9'000}, sharding},
          {{Box({rank * 3'000}, {rank * 3'000 + 3'000}), std::span<const float>(own)}});
      manager.save(step, {source});
    }
  };
  EXPECT_THAT(run_ranks(3, nullptr, save_twice), Each(""));
  const CheckpointManager manager(root_, {.collect_garbage = false});
  EXPECT_THAT(steps(manager), ElementsAre(2));
  std::vector<float> all(9'000);
  CheckpointReader(manager.latest()->step.directory).read("w", all);
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i], 20 + static_cast<float>(i / 3'000));
  }
  EXPECT_TRUE(bucket_->objects().contains("runs/step-00000002/shards-00002-of-00003.h5"));
  EXPECT_THAT(strange_keys(), ElementsAre());
}

TEST_F(BucketSave, TenThousandSmallTensorsTakeFewRequests) {
  bucket_->page_size = 1'000;
  std::vector<float> all(10'000);
  std::iota(all.begin(), all.end(), 0.0F);
  std::vector<TensorSource> sources;
  for (std::size_t i = 0; i < all.size(); ++i) {
    sources.push_back(host_source("t" + std::to_string(i), std::span<const float>(&all[i], 1)));
  }
  std::vector<std::string> requests;
  bucket_->observed = [&](std::string_view verb, const std::string& key) {
    requests.push_back(std::string(verb) + " " + key);
  };
  const fs::path step = root_ / "step-00000001";
  save_together(GroupRendezvous({}, "save"), step, sources, {}, {});
  EXPECT_THAT(std::exchange(requests, {}), SizeIs(Le(20)));
  std::vector<float> back(all.size());
  const CheckpointReader reader(step);
  std::vector<BoxTarget> targets;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t of = std::stoul(reader.tensors()[i].name.substr(1));
    targets.push_back({i, Box::whole({1}), std::as_writable_bytes(std::span(&back[of], 1))});
  }
  reader.read(targets);
  EXPECT_THAT(requests, SizeIs(Le(10)));
  EXPECT_EQ(back, all);
}

TEST_F(BucketSave, ALargeTensorTakesRequestsOfEightMebibytes) {
  const std::vector<float> all(std::size_t{16} << 20, 1.5F);  // 64 MiB
  std::map<std::string, int, std::less<>> requests;
  bucket_->observed = [&, mutex = std::make_shared<std::mutex>()](std::string_view verb,
                                                                  const std::string&) {
    const std::lock_guard lock(*mutex);
    ++requests[std::string(verb)];
  };
  const fs::path step = root_ / "step-00000001";
  save_together(GroupRendezvous({}, "save"), step, {host_source("w", all)}, {},
                {.codec = Codec::none});
  EXPECT_LE(requests["part"], 9);
  requests.clear();
  std::vector<float> back(all.size());
  CheckpointReader(step).read("w", back);
  EXPECT_EQ(back, all);
  EXPECT_LE(requests["get"], 15);
}

TEST_F(BucketSave, ThreeHundredSavesLeaveStepsAndTombstonesAlone) {
  CheckpointManager manager(root_, {.keep = {.last = 3, .every = 50}});
  for (int step = 1; step <= 300; ++step) {
    save(manager, step, static_cast<float>(step));
    if (step % 30 != 0) continue;
    EXPECT_THAT(strange_keys(), ElementsAre()) << "after step " << step;
  }
  EXPECT_EQ(bucket_->open_uploads(), 0u);
  EXPECT_EQ(restored(manager), values(300));
}

/// The bytes of a file that is written in pieces, in some order.
std::string written(FileSystem& files, const fs::path& path, std::string_view text,
                    const std::vector<std::size_t>& begins, std::size_t piece) {
  const std::unique_ptr<File> file = files.create(path, Caching::direct);
  for (const std::size_t begin : begins) {
    const std::string_view bytes = text.substr(begin, piece);
    file->write_at(begin, std::as_bytes(std::span(bytes)).data(), bytes.size());
  }
  file->resize(text.size());
  file->sync();
  file->close();
  return path.filename().string();
}

TEST_F(BucketSave, AFileIsUploadedInPartsWhileItIsWritten) {
  const auto files = bucket_detail::bucket_files(root_, 10);
  const std::string text = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFG";
  int parts = 0;
  bucket_->fault = [&](int) { return ++parts, MemoryBucket::Fault{}; };
  // The front last, as the writer of shard files does; the piece from 28 on is left to be zeros.
  written(*files, root_ / "x", text, {4, 8, 12, 16, 20, 24, 32, 36, 40, 0}, 4);
  std::string wanted = text;
  std::fill_n(wanted.begin() + 28, 4, '\0');
  EXPECT_EQ(bucket_->objects()["runs/x"], wanted);
  EXPECT_EQ(parts, 1 + 5 + 1);  // begun, put, completed
  parts = 0;
  written(*files, root_ / "y", "short", {0}, 5);
  EXPECT_EQ(bucket_->objects()["runs/y"], "short");
  EXPECT_EQ(parts, 1);
  {
    const std::unique_ptr<File> file = files->create(root_ / "z", Caching::direct);
    const std::vector<std::byte> bytes(20);
    file->write_at(10, bytes.data(), 20);
    EXPECT_EQ(bucket_->open_uploads(), 1u);
    message_of(ErrorCode::unsupported, [&] { file->write_at(12, bytes.data(), 1); });
  }
  EXPECT_EQ(bucket_->open_uploads(), 0u);
  EXPECT_FALSE(bucket_->objects().contains("runs/z"));
}

TEST_F(BucketSave, FourPartsOfAFileAreUploadedAtATime) {
  const auto files = bucket_detail::bucket_files(root_, 10);
  std::atomic<int> parts = 0;
  std::latch four(4);  // the first four wait for each other
  bucket_->observed = [&](std::string_view verb, const std::string&) {
    if (verb == "part" && parts++ < 4) four.arrive_and_wait();
  };
  const std::string text(100, 'x');
  written(*files, root_ / "x", text, {20, 30, 40, 50, 60, 70, 80, 90, 10, 0}, 10);
  EXPECT_EQ(bucket_->objects()["runs/x"], text);
  EXPECT_EQ(parts, 10);
}

TEST_F(BucketSave, AFileWhosePartFailsIsNotThere) {
  const auto files = bucket_detail::bucket_files(root_, 10);
  bucket_->fault = [](int number) {
    return MemoryBucket::Fault{number >= 2 ? RequestFault::lost : RequestFault::none};
  };
  message_of(ErrorCode::io, [&] {
    written(*files, root_ / "x", std::string(40, 'x'), {30, 20, 10, 0}, 10);
  });
  bucket_->fault = nullptr;
  EXPECT_FALSE(bucket_->objects().contains("runs/x"));
}

}  // namespace
}  // namespace shardwise
