#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "shardwise/bucket/bucket.h"
#include "shardwise/checkpoint/reader.h"
#include "shardwise/checkpoint/verify.h"
#include "shardwise/jobs/manager.h"
#include "shardwise/shard/error.h"
#include "shardwise/storage/object/bucket_path.h"
#include "testing/errors.h"
#include "testing/memory_bucket.h"
#include "testing/temp_dir.h"

namespace shardwise {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Killed {};

/// A root in a folder with steps 10 and 20, and a bucket in memory.
class CopyStep : public ::testing::Test {
 protected:
  CopyStep() {
    use_object_client("memory", bucket_, {.tries = 3, .wait = [](auto) {}});
    for (const int step : {10, 20}) save(root_, step, static_cast<float>(step));
  }
  ~CopyStep() override { use_object_client("memory", nullptr); }

  static void save(const fs::path& root, int step, float value) {
    CheckpointManager manager(root);
    std::vector<float> values(100'000);
    for (std::size_t i = 0; i < values.size(); ++i) {
      values[i] = std::sin(value * static_cast<float>(i));  // compresses badly
    }
    values[0] = value;
    manager.save(step, {host_source("w", {std::ssize(values)}, values)});
  }

  static std::vector<float> values_of(const fs::path& directory) {
    std::vector<float> values(100'000);
    CheckpointReader(directory).read("w", values);
    return values;
  }

  fs::path step(int number) const { return root_ / ("step-000000" + std::to_string(number)); }

  /// The files of a folder, as texts.
  static std::map<std::string, std::string> files(const fs::path& folder) {
    std::map<std::string, std::string> all;
    for (const auto& entry : fs::directory_iterator(folder)) {
      std::ifstream file(entry.path(), std::ios::binary);
      all[entry.path().filename().string()] = {std::istreambuf_iterator<char>(file), {}};
    }
    return all;
  }

  TempDir folder_;
  const fs::path root_ = folder_.path() / "runs";
  const fs::path bucket_root_ = "s3://memory/a/runs";
  const std::shared_ptr<MemoryBucket> bucket_ = std::make_shared<MemoryBucket>();
  const CopyOptions small_{.requests = 1, .part_bytes = 50'000};
};

TEST_F(CopyStep, GoesIntoABucketAndBackByteForByte) {
  EXPECT_EQ(copy_step(step(10), bucket_root_, small_).directory, bucket_root_ / "step-00000010");
  copy_step(step(20), bucket_root_);
  EXPECT_TRUE(verify_checkpoint(bucket_root_ / "step-00000020").ok());

  const CheckpointManager manager(bucket_root_, {.collect_garbage = false});
  ASSERT_EQ(manager.steps().size(), 2u);
  EXPECT_EQ(manager.latest()->step.step, 20);
  EXPECT_EQ(values_of(manager.latest()->step.directory), values_of(step(20)));

  const fs::path back = folder_.path() / "back";
  EXPECT_EQ(copy_step(bucket_root_ / "step-00000010", back, small_).directory,
            back / "step-00000010");
  EXPECT_EQ(files(back / "step-00000010"), files(step(10)));

  EXPECT_TRUE(remove_step(bucket_root_, 10));
  EXPECT_FALSE(remove_step(bucket_root_, 10));
  EXPECT_EQ(manager.steps().size(), 1u);
  EXPECT_TRUE(collect_bucket_garbage(bucket_root_).removed.empty());
}

TEST_F(CopyStep, IsGoneOnWithIfItWasKilled) {
  int killed_at = 0;
  for (bool is_done = false; !is_done; ++killed_at) {
    bucket_->fault = [&, begin = -1](int number) mutable {
      if (begin < 0) begin = number;
      if (number - begin == killed_at) throw Killed();
      return MemoryBucket::Fault{};
    };
    try {
      copy_step(step(10), bucket_root_, small_);
      is_done = true;
    } catch (const Killed&) {
    }
  }
  EXPECT_GT(killed_at, 5);
  bucket_->fault = nullptr;
  // One attempt, which the later copies have taken up: no generation but the first.
  for (const auto& [key, text] : bucket_->objects()) {
    EXPECT_TRUE(key.starts_with("a/runs/step-00000010/") || key == "a/runs/.shardwise-root") << key;
  }
  EXPECT_EQ(copy_step(step(10), bucket_root_).present, copy_step(step(10), bucket_root_).bytes);
}

TEST_F(CopyStep, RefusesAnotherStepOfTheNumberUnlessItIsToBeReplaced) {
  copy_step(step(10), bucket_root_);
  const fs::path other = folder_.path() / "other";
  save(other, 10, 11);
  message_of(ErrorCode::already_exists, [&] { copy_step(other / "step-00000010", bucket_root_); });
  CopyOptions replace;
  replace.replace = true;
  EXPECT_EQ(copy_step(other / "step-00000010", bucket_root_, replace).directory,
            bucket_root_ / "step-00000010.g2");
  const CheckpointManager manager(bucket_root_, {.collect_garbage = false});
  EXPECT_EQ(values_of(manager.step(10).directory)[0], 11);
}

TEST_F(CopyStep, PublishesNothingOfADamagedSource) {
  {
    std::fstream file(step(10) / "shards-00000-of-00001.h5",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(3000);
    file.write("damage", 6);
  }
  message_of(ErrorCode::corrupt, [&] { copy_step(step(10), bucket_root_); });
  EXPECT_TRUE(CheckpointManager(bucket_root_, {.collect_garbage = false}).steps().empty());
  const fs::path back = folder_.path() / "back";
  message_of(ErrorCode::corrupt, [&] { copy_step(step(10), back); });
  EXPECT_TRUE(fs::is_empty(back));
}

/// Takes every put, as rclone's server does.
class WithoutConditions final : public ObjectClient {
 public:
  explicit WithoutConditions(std::shared_ptr<ObjectClient> real) : real_(std::move(real)) {}

  std::string name() const override { return real_->name(); }
  RequestResult put(const std::string& key, std::span<const std::byte> body, const PutCondition&,
                    std::string& etag) override {
    return real_->put(key, body, {}, etag);
  }
  RequestResult get(const std::string& key, std::uint64_t offset, std::span<std::byte> into,
                    const std::string& if_match) override {
    return real_->get(key, offset, into, if_match);
  }
  RequestResult head(const std::string& key, ObjectInfo& info) override {
    return real_->head(key, info);
  }
  RequestResult list(const std::string& prefix, const std::string& delimiter,
                     const std::string& from, ObjectPage& page) override {
    return real_->list(prefix, delimiter, from, page);
  }
  RequestResult remove(const std::string& key) override { return real_->remove(key); }
  RequestResult begin_upload(const std::string& key, std::string& id) override {
    return real_->begin_upload(key, id);
  }
  RequestResult put_part(const OpenUpload& upload, int number, std::span<const std::byte> body,
                         std::string& etag) override {
    return real_->put_part(upload, number, body, etag);
  }
  RequestResult complete_upload(const OpenUpload& upload, std::span<const std::string> etags,
                                std::string& etag) override {
    return real_->complete_upload(upload, etags, etag);
  }
  RequestResult abort_upload(const OpenUpload& upload) override {
    return real_->abort_upload(upload);
  }
  RequestResult list_uploads(const std::string& prefix, std::vector<OpenUpload>& uploads) override {
    return real_->list_uploads(prefix, uploads);
  }

 private:
  const std::shared_ptr<ObjectClient> real_;
};

TEST_F(CopyStep, RefusesAStoreThatIgnoresConditions) {
  use_object_client("memory", std::make_shared<WithoutConditions>(bucket_));
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { copy_step(step(10), bucket_root_); }),
              HasSubstr("If-None-Match"));
  EXPECT_THAT(message_of(ErrorCode::unsupported, [&] { save(bucket_root_, 10, 1); }),
              HasSubstr("If-None-Match"));
  EXPECT_TRUE(bucket_->objects().empty());
}

}  // namespace
}  // namespace shardwise
